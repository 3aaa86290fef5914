//! A private RabbitMQ broker.
//!
//! Virtual hosts are made by `rabbitmqctl eval`, several in one call: one call takes most of a second, a
//! virtual host in it some milliseconds. The management plugin's HTTP would make one in 20 ms, but starts
//! slower, needs more memory, and takes 6 s to stop instead of 1.3 s.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::certificates::Certificates;
use crate::epmd::epmd_port;
use crate::error::{Attempt as _, Error, Result};
use crate::folder::Folder;
use crate::ports::free_port;
use crate::process::{self, Process, Signal};
use crate::vhost::Vhost;
use crate::wait::eventually_some;

/// How long a start or a stop may take.
const DEADLINE: Duration = Duration::from_secs(120);

/// The protocol header of AMQP 0-9-1 (section 4.2.2 of the specification).
const PROTOCOL_HEADER: &[u8] = b"AMQP\0\0\x09\x01";

/// What a broker should be like; the default is one plain listener and no plugin.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct RabbitMqOptions {
    config: Vec<(String, String)>,
    plugins: Vec<String>,
    tls: Option<Certificates>,
    client_certificates: bool,
    bin_dir: Option<PathBuf>,
}

impl RabbitMqOptions {
    /// Adds a line to rabbitmq.conf (`vm_memory_high_watermark.absolute`, `64MB`).
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.config.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Switches a plugin on (`rabbitmq_management`; it listens on the port that the test gives it by
    /// [`config`](Self::config)).
    pub fn plugin(mut self, name: &str) -> Self {
        self.plugins.push(name.to_owned());
        self
    }

    /// Adds a TLS listener with this certificate.
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.tls = Some(certificates.clone());
        self
    }

    /// Has the TLS listener demand a client certificate of the server certificate's own authority, and takes its common
    /// name for the user of the SASL mechanism EXTERNAL.
    pub fn client_certificates(mut self) -> Self {
        self.client_certificates = true;
        self.plugin("rabbitmq_auth_mechanism_ssl")
            .config("auth_mechanisms.1", "PLAIN")
            .config("auth_mechanisms.2", "EXTERNAL")
            .config("ssl_cert_login_from", "common_name")
    }

    /// Takes `rabbitmq-server` and `rabbitmqctl` from this folder.
    pub fn bin_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.bin_dir = Some(folder.into());
        self
    }
}

/// A private broker on 127.0.0.1, ended on drop. Its user is `guest`, password `guest`.
#[derive(Debug)]
pub struct RabbitMq {
    process: Option<Process>,
    bin_dir: PathBuf,
    node: String,
    port: u16,
    tls_port: Option<u16>,
    vhosts: Mutex<VhostPool>,
    folder: Folder,
}

#[derive(Debug, Default)]
struct VhostPool {
    made: usize,
    spare: Vec<String>,
}

impl RabbitMq {
    /// Starts a broker and waits until it answers: 4 to 7 s.
    ///
    /// # Errors
    /// [`Error::Missing`] when no RabbitMQ is installed, [`Error::Process`] with its output when it does not
    /// start.
    pub async fn start(options: RabbitMqOptions) -> Result<RabbitMq> {
        let bin_dir = options.bin_dir.clone().map_or_else(find_bin_dir, Ok)?;
        let folder = Folder::new("rabbitmq-")?;
        let id = uuid::Uuid::new_v4().simple().to_string();
        let mut broker = RabbitMq {
            process: None,
            bin_dir,
            node: format!("walrelay-{}@localhost", id.get(..12).unwrap_or(&id)),
            port: free_port(),
            tls_port: options.tls.as_ref().map(|_| free_port()),
            vhosts: Mutex::default(),
            folder,
        };
        broker.write_files(&options)?;
        broker.start_again().await?;
        Ok(broker)
    }

    /// The plain listener's port on 127.0.0.1; it stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The TLS listener's port, where [`RabbitMqOptions::tls`] asked for one.
    pub fn tls_port(&self) -> Option<u16> {
        self.tls_port
    }

    /// The name of its Erlang node, for `rabbitmqctl join_cluster` of another one: all share a cookie.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The broker's process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// What the broker has logged so far.
    pub fn log(&self) -> String {
        std::fs::read(self.path("broker.log"))
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// A virtual host of the test's own, with all permissions for `guest`. It goes with the broker.
    ///
    /// # Errors
    /// [`Error::Process`] when the broker does not make one.
    pub async fn vhost(&self) -> Result<Vhost> {
        let mut pool = self.vhosts.lock().await;
        if pool.spare.is_empty() {
            // A broker for one test gets few, one that is shared soon gets many at a time.
            let batch = (pool.made..pool.made + pool.made.clamp(2, 32))
                .map(|n| format!("test-{n}"))
                .collect();
            pool.spare = self.make_vhosts(batch).await?;
            pool.made += pool.spare.len();
        }
        let name = pool
            .spare
            .pop()
            .ok_or_else(|| Error::Unexpected("no virtual host was made".to_owned()))?;
        Ok(Vhost {
            name,
            port: self.port,
            tls_port: self.tls_port,
        })
    }

    async fn make_vhosts(&self, names: Vec<String>) -> Result<Vec<String>> {
        let list: Vec<String> = names.iter().map(|name| format!("<<\"{name}\">>")).collect();
        let code = format!(
            "lists:foreach(fun(V) -> rabbit_vhost:add(V, <<\"test\">>), rabbit_auth_backend_internal:set_permissions(<<\"guest\">>, V, \
             <<\".*\">>, <<\".*\">>, <<\".*\">>, <<\"test\">>) end, [{}]).",
            list.join(","),
        );
        let answer = self.ctl(&["eval", &code]).await?;
        if answer.trim() == "ok" {
            Ok(names)
        } else {
            Err(Error::Unexpected(format!("rabbitmqctl eval: {answer}")))
        }
    }

    /// Runs the broker's own `rabbitmqctl`, quietly: most of a second.
    ///
    /// # Errors
    /// [`Error::Process`] with its output when it fails.
    pub async fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.command("rabbitmqctl")?;
        command.arg("-q").args(arguments);
        process::run(format!("rabbitmqctl {}", arguments.join(" ")), command).await
    }

    /// Stops the broker tidily and starts it again on the same ports, with its queues.
    ///
    /// # Errors
    /// As [`stop`](Self::stop) and [`start_again`](Self::start_again).
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.start_again().await
    }

    /// Has the broker write out which quorum queues and streams it has. It does so late by itself (3.10 in `names.dets`), and
    /// one that is killed before has forgotten them, with all that they held, and does not find them again.
    ///
    /// # Errors
    /// As [`ctl`](Self::ctl).
    pub async fn write_out(&self) -> Result<()> {
        let code = "lists:foreach(fun dets:sync/1, dets:all()).";
        self.ctl(&["eval", code]).await.map(drop)
    }

    /// SIGTERM: clients are told (320), and the broker ends.
    ///
    /// # Errors
    /// [`Error::Timeout`] when it does not end.
    pub async fn stop(&mut self) -> Result<()> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        process.signal(Signal::Terminate)?;
        process.wait_exit(DEADLINE).await?;
        self.process = None;
        Ok(())
    }

    /// SIGKILL: nobody is told; only what was confirmed is sure to be found after
    /// [`start_again`](Self::start_again).
    ///
    /// # Errors
    /// [`Error::Timeout`] when it does not end.
    pub async fn kill(&mut self) -> Result<()> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        process.kill().await?;
        self.process = None;
        Ok(())
    }

    /// SIGSTOP: the broker keeps its connections but does nothing.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn pause(&mut self) -> Result<()> {
        self.process
            .as_mut()
            .map_or(Ok(()), |process| process.signal(Signal::Stop))
    }

    /// SIGCONT: the end of a [`pause`](Self::pause).
    ///
    /// # Errors
    /// When the system refuses.
    pub fn resume(&mut self) -> Result<()> {
        self.process
            .as_mut()
            .map_or(Ok(()), |process| process.signal(Signal::Continue))
    }

    /// Raises the memory alarm: every connection that publishes is blocked from its next publish on.
    ///
    /// # Errors
    /// As [`ctl`](Self::ctl).
    pub async fn raise_memory_alarm(&mut self) -> Result<()> {
        self.ctl(&["set_vm_memory_high_watermark", "absolute", "1MB"])
            .await
            .map(drop)
    }

    /// Clears the memory alarm again.
    ///
    /// # Errors
    /// As [`ctl`](Self::ctl).
    pub async fn clear_memory_alarm(&mut self) -> Result<()> {
        self.ctl(&["set_vm_memory_high_watermark", "0.4"]).await.map(drop)
    }

    /// Starts the stopped or killed broker, and waits until it answers.
    ///
    /// # Errors
    /// [`Error::Process`] with its output when it does not start, [`Error::Timeout`] when it does not answer.
    pub async fn start_again(&mut self) -> Result<()> {
        if self.process.is_some() {
            return Ok(());
        }
        let log = self.path("broker.log");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(log)
            .attempt("open the broker's log")?;
        let mut command = self.command("rabbitmq-server")?;
        command
            .stderr(log.try_clone().attempt("share the log")?)
            .stdout(log);
        let mut process = Process::spawn("RabbitMQ", &mut command, Signal::Kill)?;
        let port = self.port;
        let answered = eventually_some("an answer of RabbitMQ", DEADLINE, || {
            let ended = process.exit_status();
            async move {
                match ended {
                    Ok(None) => answers(port).await.then_some(Ok(())),
                    Ok(Some(status)) => Some(Err(status)),
                    Err(_) => None,
                }
            }
        });
        match answered.await? {
            Ok(()) => self.process = Some(process),
            Err(status) => return Err(self.failed_start(status)),
        }
        Ok(())
    }

    fn write_files(&self, options: &RabbitMqOptions) -> Result<()> {
        let mut config = vec![
            format!("listeners.tcp.1 = 127.0.0.1:{}", self.port),
            "loopback_users = none".to_owned(),
            "log.console = true".to_owned(),
            "log.console.level = info".to_owned(),
            "log.file = false".to_owned(),
            "disk_free_limit.absolute = 1MB".to_owned(),
        ];
        if let (Some(port), Some(tls)) = (self.tls_port, &options.tls) {
            config.push(format!("listeners.ssl.1 = 127.0.0.1:{port}"));
            config.push(format!("ssl_options.cacertfile = {}", tls.ca_path().display()));
            config.push(format!(
                "ssl_options.certfile = {}",
                tls.server_cert_path().display()
            ));
            config.push(format!(
                "ssl_options.keyfile = {}",
                tls.server_key_path().display()
            ));
            let verify = match options.client_certificates {
                true => "verify_peer",
                false => "verify_none",
            };
            config.push(format!("ssl_options.verify = {verify}"));
            let demands = options.client_certificates;
            config.push(format!("ssl_options.fail_if_no_peer_cert = {demands}"));
        }
        config.extend(
            options
                .config
                .iter()
                .map(|(key, value)| format!("{key} = {value}")),
        );
        self.folder
            .write("rabbitmq.conf", &(config.join("\n") + "\n"), 0o644)?;
        self.folder.write(
            "enabled_plugins",
            &format!("[{}].\n", options.plugins.join(",")),
            0o644,
        )?;
        self.folder.write("rabbitmq-env.conf", "", 0o644)?;
        self.folder.write(".erlang.cookie", "WALRELAYTESTBED", 0o400)?;
        Ok(())
    }

    fn command(&self, program: &str) -> Result<Command> {
        let path = |name: &str| self.path(name).into_os_string();
        let epmd_port = epmd_port()?;
        let mut command = Command::new(self.bin_dir.join(program));
        command.env_clear().current_dir(self.folder.path());
        command.env(
            "PATH",
            std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()),
        );
        command.envs([
            ("LC_ALL", OsStr::new("C.UTF-8").to_owned()),
            ("HOME", self.folder.path().as_os_str().to_owned()),
            ("RABBITMQ_NODENAME", self.node.clone().into()),
            ("RABBITMQ_CONF_ENV_FILE", path("rabbitmq-env.conf")),
            ("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", path("enabled_plugins")),
            ("RABBITMQ_MNESIA_BASE", path("mnesia")),
            ("RABBITMQ_LOG_BASE", path("log")),
            ("RABBITMQ_PID_FILE", path("pid")),
            ("ERL_EPMD_PORT", epmd_port.to_string().into()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
            ("ERL_CRASH_DUMP_SECONDS", "0".into()),
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1}".into(),
            ),
            // Makes the start script become the broker instead of its parent, so that signals reach the right
            // process.
            ("RUNNING_UNDER_SYSTEMD", "true".into()),
        ]);
        if program == "rabbitmq-server" {
            command.env("RABBITMQ_DIST_PORT", free_port().to_string());
        }
        Ok(command)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn failed_start(&self, status: std::process::ExitStatus) -> Error {
        let log = self.log();
        let end: Vec<&str> = log.lines().rev().take(30).collect();
        Error::Process {
            program: "RabbitMQ".to_owned(),
            status: status.to_string(),
            output: end.into_iter().rev().collect::<Vec<_>>().join("\n"),
        }
    }
}

/// Whether a broker answers our protocol header with a method frame (type 1), Connection.Start.
async fn answers(port: u16) -> bool {
    let asking = tokio::task::spawn_blocking(move || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(PROTOCOL_HEADER)?;
        let mut first = [0];
        stream.read_exact(&mut first)?;
        Ok(first == [1])
    });
    matches!(asking.await, Ok(Ok(true)))
}

/// `WALRELAY_TEST_RABBITMQ_BIN`, else the package's own scripts: the wrappers on the PATH switch user and cannot reach a private broker.
fn find_bin_dir() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("WALRELAY_TEST_RABBITMQ_BIN") {
        return Ok(PathBuf::from(folder));
    }
    let folder = Path::new("/usr/lib/rabbitmq/bin");
    if folder.join("rabbitmq-server").exists() {
        return Ok(folder.to_owned());
    }
    Err(Error::Missing(
        "no RabbitMQ found: install the package rabbitmq-server (Debian), or name the folder of rabbitmq-server and rabbitmqctl \
         in WALRELAY_TEST_RABBITMQ_BIN"
            .to_owned(),
    ))
}
