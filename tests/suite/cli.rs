//! The command line of the real binary: exit codes, stdout, stderr.

use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

const URLS: &str =
    "[postgres]\nurl = 'postgres://u:hunter2@db/shop'\n[rabbitmq]\nuri = 'amqp://u:hunter2@mq'\n";

/// A run of the binary in a folder of its own, with nothing of our environment.
#[must_use]
struct Run {
    folder: TempDir,
    command: Command,
}

/// What a run left behind.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Run {
    fn new(arguments: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_walrelay"));
        command
            .args(arguments.split_whitespace())
            .current_dir(folder.path())
            .env_clear()
            .stdin(Stdio::null());
        Self { folder, command }
    }

    fn file(self, name: &str, text: &str) -> Self {
        std::fs::write(self.folder.path().join(name), text).expect("written");
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    fn end(mut self) -> Ended {
        let output = self.command.output().expect("the binary starts");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Ended {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

#[test]
fn the_version_is_that_of_the_crate() {
    let ended = Run::new("--version").end();
    assert_eq!(ended.stdout, format!("walrelay {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(ended.code, Some(0));
}

#[test]
fn wrong_usage_exits_2() {
    for arguments in ["", "walk", "run --fast", "config", "teardown --yes=1"] {
        let ended = Run::new(arguments).end();
        assert_eq!(ended.code, Some(2), "{arguments}: {}", ended.stderr);
        assert_eq!(ended.stdout, "");
    }
    assert!(Run::new("teardwn").end().stderr.contains("'teardown'"));
}

#[test]
fn a_wrong_configuration_exits_78_with_one_line_for_each_problem() {
    let text = format!("{URLS}[delivery]\nmax_inflight = 5\nconfirm_timeout = 30\n");
    for command in ["config check", "config show", "run", "setup", "teardown --yes"] {
        let ended = Run::new(command).file("walrelay.toml", &text).end();
        assert_eq!(ended.code, Some(78), "{command}");
        assert_eq!(ended.stdout, "");
        assert_eq!(
            ended.stderr,
            "walrelay.toml:6: unknown key delivery.max_inflight; did you mean delivery.max_in_flight?\n\
             walrelay.toml:7: delivery.confirm_timeout must be a duration such as \"10s\" or \"100ms\", not the number \
             30\n"
        );
    }
}

#[test]
fn a_file_that_is_named_must_exist() {
    let ended = Run::new("config check --config other.toml")
        .file("walrelay.toml", URLS)
        .end();
    assert_eq!(ended.code, Some(78));
    assert_eq!(
        ended.stderr,
        "--config: cannot read other.toml: No such file or directory (os error 2)\n"
    );
    let ended = Run::new("config check")
        .env("WALRELAY_CONFIG", "other.toml")
        .end();
    assert_eq!(
        ended.stderr,
        "WALRELAY_CONFIG: cannot read other.toml: No such file or directory (os error 2)\n"
    );
}

#[test]
fn without_a_file_it_is_said_where_it_was_looked_for() {
    let ended = Run::new("config check").end();
    assert_eq!(ended.code, Some(78));
    let lines: Vec<_> = ended.stderr.lines().collect();
    assert_eq!(
        lines[0],
        "no configuration file: neither ./walrelay.toml nor /etc/walrelay/walrelay.toml exists; --config FILE names \
         another"
    );
    assert!(lines[1].starts_with("postgres.url is not set: "), "{lines:?}");
    // Nothing is missing that a file would have brought.
    let ended = Run::new("config check --set postgres.slot=A")
        .env("WALRELAY_POSTGRES_URL", "postgres://u@db/shop")
        .env("WALRELAY_RABBITMQ_URI", "amqp://u@mq")
        .end();
    assert!(
        !ended.stderr.contains("no configuration file"),
        "{}",
        ended.stderr
    );
}

#[test]
fn what_the_command_line_has_wrong_is_wrong_usage_whoever_notices() {
    for arguments in [
        "config check --set foo",
        "setup --url nonsense",
        "teardown --yes --url postgres://u:hunter2@x@y/z",
    ] {
        let ended = Run::new(arguments).file("walrelay.toml", URLS).end();
        assert_eq!(ended.code, Some(2), "{arguments}: {}", ended.stderr);
        assert!(!ended.stderr.contains("hunter2"), "{}", ended.stderr);
        assert!(!ended.stderr.contains("postgres.url"), "{}", ended.stderr);
    }
}

#[test]
fn an_exchange_that_cannot_be_declared_is_an_error_where_it_is_to_be() {
    for exchange in ["", "{aggregate_type}", "shop.{aggregate_type}"] {
        let exchange = format!("exchange = '{exchange}'\n");
        let declared = format!("{URLS}{exchange}[rabbitmq.declare]\nexchange_type = 'topic'\n");
        let ended = Run::new("config check").file("walrelay.toml", &declared).end();
        assert_eq!(ended.code, Some(78), "{exchange}");
        assert_eq!(
            ended.stderr,
            "walrelay.toml:7: rabbitmq.declare cannot declare an exchange with a column in its name, nor the default \
             exchange: leave it out\n"
        );
        let left_out = format!("{URLS}{exchange}");
        let ended = Run::new("config check").file("walrelay.toml", &left_out).end();
        assert_eq!(ended.code, Some(0), "{exchange}: {}", ended.stderr);
    }
}

#[test]
fn a_valid_configuration_is_said_to_be_valid() {
    let ended = Run::new("config check").file("walrelay.toml", URLS).end();
    assert_eq!(
        (ended.stdout.as_str(), ended.stderr.as_str()),
        ("configuration is valid (walrelay.toml)\n", "")
    );
    assert_eq!(ended.code, Some(0));
    let ended = Run::new("--config other.toml config check")
        .file("other.toml", URLS)
        .end();
    assert_eq!(ended.stdout, "configuration is valid (other.toml)\n");
}

#[test]
fn the_sample_is_valid() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/walrelay.toml");
    let ended = Run::new("config check")
        .env("WALRELAY_CONFIG", &sample.to_string_lossy())
        .end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn variables_and_flags_do_without_a_file() {
    let ended = Run::new("--set log.level=debug config show --set postgres.slot=shop --log-level warn")
        .env("WALRELAY_POSTGRES_URL", "postgres://u:hunter2@db/shop")
        .env("WALRELAY_RABBITMQ_URI", "amqp://u:hunter2@mq")
        .env("WALRELAY_PORT", "tcp://10.0.0.1:80")
        .end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for line in [
        "url = \"postgres://u:********@db/shop\"  # WALRELAY_POSTGRES_URL",
        "uri = \"amqp://u:********@mq\"  # WALRELAY_RABBITMQ_URI",
        "slot = \"shop\"  # --set",
        "level = \"warn\"  # --log-level",
        "exchange = \"outbox\"  # default",
    ] {
        assert!(
            ended.stdout.lines().any(|shown| shown == line),
            "{line} is not in\n{}",
            ended.stdout
        );
    }
    assert_eq!(
        ended.stderr,
        "warning: unknown environment variable WALRELAY_PORT is ignored\n"
    );
    assert!(!ended.stdout.contains("hunter2"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let run = Run::new("config show").file("walrelay.toml", URLS);
    let Run {
        folder: _folder,
        mut command,
    } = run;
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = command.stdout(writer).status().expect("the binary starts");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn completions_and_manual_pages_need_no_configuration() {
    for (shell, sign) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef walrelay"),
        ("fish", "complete -c walrelay"),
    ] {
        let ended = Run::new(&format!("completions {shell}")).end();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stdout.contains(sign) && ended.stdout.contains("dead-letters"));
    }
    assert_eq!(Run::new("completions tcsh").end().code, Some(2));
    let ended = Run::new("man").end();
    assert!(ended.stdout.contains(".TH walrelay 1"), "{}", ended.stdout);

    let ended = Run::new("man nope/x").end();
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.stderr, "walrelay: nope/x is no folder: create it first\n");
    let mut run = Run::new("man pages");
    std::fs::create_dir(run.folder.path().join("pages")).expect("a folder");
    assert!(run.command.status().expect("the binary starts").success());
    let page = run.folder.path().join("pages/walrelay-dead-letters-retry.1");
    assert!(page.exists());
}

#[test]
fn the_health_of_a_relay_that_does_not_run_is_an_error_that_names_the_address() {
    let ended = Run::new("health --set admin.listen=127.0.0.1:9 --config walrelay.toml")
        .file("walrelay.toml", URLS)
        .end();
    assert_eq!(ended.code, Some(1));
    assert!(
        ended
            .stderr
            .starts_with("walrelay: connect to 127.0.0.1:9: Connection refused"),
        "{}",
        ended.stderr
    );
    assert!(
        ended
            .stderr
            .ends_with(": no relay of this configuration runs here, or its admin.listen is another\n"),
        "{}",
        ended.stderr
    );
    let ended = Run::new("health --timeout 0s").end();
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("expected more than 0s"), "{}", ended.stderr);
}
