//! A private PostgreSQL server.

mod standby;

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio_postgres::{Client, NoTls};

use crate::account::{Account, give};
use crate::certificates::Certificates;
use crate::database::{self, Database};
use crate::error::{Attempt as _, Error, Result};
use crate::folder::Folder;
use crate::ports::free_port;
use crate::process::{self, Process, Signal};
use crate::wait::{eventually, eventually_some};

/// How long a start, a stop or a restart may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// How a server stops; the names are pg_ctl's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Sessions are ended, everything is written, walsenders may flush.
    Fast,
    /// As a crash, but at once and tidily: recovery at the next start.
    Immediate,
}

/// What a server should be like; the default suits most tests.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct PostgresOptions {
    settings: Vec<(String, String)>,
    hba: Vec<String>,
    tls: Option<Certificates>,
    bin_dir: Option<PathBuf>,
}

impl PostgresOptions {
    /// Adds a line to postgresql.conf; a later one wins over an earlier, and over the test bed's own.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a line to pg_hba.conf above the test bed's own, which trusts everybody (`host all alice
    /// 127.0.0.1/32 md5`).
    pub fn hba(mut self, line: &str) -> Self {
        self.hba.push(line.to_owned());
        self
    }

    /// Switches `ssl` on with this certificate; connections without TLS stay possible unless an
    /// [`hba`](Self::hba) line forbids them.
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.tls = Some(certificates.clone());
        self
    }

    /// Takes the server's programs (`initdb`, `postgres`) from this folder.
    pub fn bin_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.bin_dir = Some(folder.into());
        self
    }
}

/// A private server on 127.0.0.1 and on a Unix socket, stopped on drop. The superuser is `postgres`.
///
/// By default: `wal_level=logical`, `fsync=off`, 100 slots and walsenders, 200 connections, everybody is
/// trusted.
#[derive(Debug)]
pub struct Postgres {
    process: Option<Process>,
    bin_dir: PathBuf,
    account: Option<Account>,
    port: u16,
    /// Declared last: the files go after the process has ended.
    folder: Folder,
}

impl Postgres {
    /// Makes a data folder and starts a server on it: about 0.7 s.
    ///
    /// # Errors
    /// [`Error::Missing`] when no PostgreSQL is installed, [`Error::Process`] with the log's end when the
    /// server does not start.
    pub async fn start(options: PostgresOptions) -> Result<Postgres> {
        let bin_dir = options.bin_dir.clone().map_or_else(find_bin_dir, Ok)?;
        let account = Account::for_servers()?;
        let folder = Folder::new("postgres-")?;
        for name in ["data", "socket"] {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).attempt(format!("make {}", path.display()))?;
            give(&path, account)?;
        }
        let mut postgres = Postgres {
            process: None,
            bin_dir,
            account,
            port: free_port(),
            folder,
        };
        postgres.init(&options).await?;
        postgres.start_again().await?;
        Ok(postgres)
    }

    /// The TCP port on 127.0.0.1; it stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of the Unix socket.
    pub fn socket_dir(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// A libpq URL of a database, over TCP, as the superuser.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The folder of the server's programs.
    pub fn bin_dir(&self) -> &Path {
        &self.bin_dir
    }

    /// The postmaster's process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// What the server has logged so far.
    pub fn log(&self) -> String {
        std::fs::read(self.log_path())
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// Connects to a database as the superuser, over the Unix socket.
    ///
    /// # Errors
    /// [`Error::Postgres`].
    pub async fn client(&self, database: &str) -> Result<Client> {
        database::connect(&self.socket_dir(), self.port, database).await
    }

    /// Makes a fresh database under a unique name.
    ///
    /// # Errors
    /// [`Error::Postgres`].
    pub async fn database(&self) -> Result<Database> {
        Database::create(&self.socket_dir(), self.port).await
    }

    /// Stops the server and starts it again, on the same port.
    ///
    /// # Errors
    /// As [`stop`](Self::stop) and [`start_again`](Self::start_again).
    pub async fn restart(&mut self, mode: StopMode) -> Result<()> {
        self.stop(mode).await?;
        self.start_again().await
    }

    /// Stops the server and waits for its end.
    ///
    /// # Errors
    /// [`Error::Timeout`] when it does not end, for instance because a walsender's client never lets go.
    pub async fn stop(&mut self, mode: StopMode) -> Result<()> {
        let signal = match mode {
            StopMode::Fast => Signal::Interrupt,
            StopMode::Immediate => Signal::Quit,
        };
        self.signal(signal)?;
        self.wait_stopped(DEADLINE).await
    }

    /// Sends a signal to the postmaster and does not wait: with [`wait_stopped`](Self::wait_stopped) the
    /// halves of [`stop`](Self::stop).
    ///
    /// # Errors
    /// When the system refuses.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process
            .as_mut()
            .map_or(Ok(()), |process| process.signal(signal))
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub async fn wait_stopped(&mut self, deadline: Duration) -> Result<()> {
        if let Some(process) = &mut self.process {
            process.wait_exit(deadline).await?;
        }
        self.process = None;
        Ok(())
    }

    /// Copies the files of the stopped server, for [`set_back`](Self::set_back).
    ///
    /// # Errors
    /// When they cannot be copied.
    pub fn save(&self) -> Result<()> {
        copy(&self.data_dir(), &self.saved_dir())
    }

    /// Puts the files that were saved in place of those of the stopped server.
    ///
    /// # Errors
    /// When they cannot be copied.
    pub fn set_back(&self) -> Result<()> {
        std::fs::remove_dir_all(self.data_dir()).attempt("remove the data directory")?;
        copy(&self.saved_dir(), &self.data_dir())
    }

    /// SIGKILL to the postmaster; waits until it and all its children have gone, so that a start will not
    /// find their locks.
    ///
    /// # Errors
    /// [`Error::Timeout`] when a child stays.
    pub async fn kill(&mut self) -> Result<()> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        let children = process::children_of(process.pid());
        process.kill().await?;
        self.process = None;
        let gone = || std::future::ready(!children.iter().any(|pid| process::is_running(*pid)));
        eventually("the end of PostgreSQL's children", DEADLINE, gone).await
    }

    /// Starts the stopped or killed server, and waits until it answers.
    ///
    /// # Errors
    /// [`Error::Process`] with the log's end when it does not start, [`Error::Timeout`] when it does not
    /// answer.
    pub async fn start_again(&mut self) -> Result<()> {
        if self.process.is_some() {
            return Ok(());
        }
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .attempt("open the log")?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data_dir());
        command
            .stderr(log.try_clone().attempt("share the log")?)
            .stdout(log);
        let mut process = Process::spawn("PostgreSQL", &mut command, Signal::Quit)?;
        let (socket_dir, port) = (self.socket_dir(), self.port);
        let answered = eventually_some("an answer of PostgreSQL", DEADLINE, || {
            let ended = process.exit_status();
            let (socket_dir, ended) = (&socket_dir, ended);
            async move {
                match ended {
                    Ok(None) => answers(socket_dir, port).await.then_some(Ok(())),
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

    async fn init(&self, options: &PostgresOptions) -> Result<()> {
        let mut initdb = self.command("initdb");
        initdb.args([
            "--no-sync",
            "-A",
            "trust",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-instructions",
            "-D",
        ]);
        initdb.arg(self.data_dir());
        process::run("initdb".to_owned(), initdb).await?;
        let mut conf = format!(
            "listen_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = {}\nwal_level = logical\nfsync = off\n\
             max_replication_slots = 1000\nmax_wal_senders = 100\nmax_connections = 200\nlog_line_prefix = '%m [%p] %a '\n",
            self.port,
            quoted(&self.socket_dir().to_string_lossy()),
        );
        if let Some(tls) = &options.tls {
            conf.push_str("ssl = on\nssl_cert_file = 'server.crt'\nssl_key_file = 'server.key'\n");
            self.write_private("server.crt", tls.server_cert())?;
            self.write_private("server.key", tls.server_key())?;
        }
        for (name, value) in &options.settings {
            conf.push_str(&format!("{name} = {}\n", quoted(value)));
        }
        let path = self.data_dir().join("postgresql.conf");
        let old = std::fs::read_to_string(&path).attempt("read postgresql.conf")?;
        std::fs::write(&path, old + &conf).attempt("write postgresql.conf")?;
        // The first line keeps a way in for the test bed itself, whatever a test asks for.
        let hba = format!(
            "local all postgres trust\n{}\nlocal all all trust\nhost all all 127.0.0.1/32 trust\n\
             local replication all trust\nhost replication all 127.0.0.1/32 trust\n",
            options.hba.join("\n"),
        );
        std::fs::write(self.data_dir().join("pg_hba.conf"), hba).attempt("write pg_hba.conf")
    }

    fn write_private(&self, name: &str, content: &str) -> Result<()> {
        let path = self.folder.write(&format!("data/{name}"), content, 0o600)?;
        give(&path, self.account)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin_dir.join(program));
        // PG* variables and locale of whoever runs the tests must not matter.
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LC_ALL", "C")
            .env("TZ", "UTC");
        command.current_dir(self.folder.path());
        if let Some(Account { uid, gid }) = self.account {
            command.uid(uid).gid(gid);
        }
        command
    }

    fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn saved_dir(&self) -> PathBuf {
        self.folder.path().join("saved")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("postgres.log")
    }

    fn failed_start(&self, status: std::process::ExitStatus) -> Error {
        let log = self.log();
        let end: Vec<&str> = log.lines().rev().take(20).collect();
        Error::Process {
            program: "PostgreSQL".to_owned(),
            status: status.to_string(),
            output: end.into_iter().rev().collect::<Vec<_>>().join("\n"),
        }
    }
}

async fn answers(socket_dir: &Path, port: u16) -> bool {
    let (client, connection) = match database::config(socket_dir, port, "postgres")
        .connect(NoTls)
        .await
    {
        Ok(connected) => connected,
        Err(_) => return false,
    };
    let query = async { client.simple_query("select 1").await.is_ok() };
    tokio::select! {
        answered = query => answered,
        _ = connection => false,
    }
}

/// With owners and permissions: the server starts from no others.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    let output = command.arg("-a").args([from, to]).output().attempt("run cp")?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::Process {
            program: format!("cp -a {} {}", from.display(), to.display()),
            status: output.status.to_string(),
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        }),
    }
}

/// A value in postgresql.conf's single quotes.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

/// `WALRELAY_TEST_PG_BIN`, else the newest Debian cluster's programs, else what `pg_config` names.
fn find_bin_dir() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("WALRELAY_TEST_PG_BIN") {
        return Ok(PathBuf::from(folder));
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let newest = versions
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse::<u32>().ok()?,
                entry.path().join("bin"),
            ))
        })
        .filter(|(_, folder)| folder.join("initdb").exists())
        .max();
    if let Some((_, folder)) = newest {
        return Ok(folder);
    }
    let asked = Command::new("pg_config").arg("--bindir").output();
    let named = asked.ok().map(|output| {
        use std::os::unix::ffi::OsStrExt as _;
        PathBuf::from(OsStr::from_bytes(output.stdout.trim_ascii()))
    });
    named.filter(|folder| folder.join("initdb").exists()).ok_or_else(|| {
        Error::Missing(
            "no PostgreSQL server found: install the package postgresql (Debian), or name the folder of initdb and postgres in \
             WALRELAY_TEST_PG_BIN"
                .to_owned(),
        )
    })
}
