//! Real servers of objects, as ordinary processes on loopback.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) const KEY: &str = "untorn-test";
pub(crate) const SECRET: &str = "untorn-test-secret";
/// The account and the key that the emulator of Azure has, which its maker has published.
const ACCOUNT: &str = "devstoreaccount1";
const ACCOUNT_KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// How long a server may take to begin.
const PATIENCE: Duration = Duration::from_secs(180);

/// The program that a variable names, or the one in PATH; otherwise why the test is skipped.
pub(crate) fn binary(variable: &str, name: &str) -> Result<PathBuf, String> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let found = named.or_else(|| untorn_testing::find_program(name));
    found.ok_or_else(|| format!("needs {name} in PATH, or its path in {variable}; docs/testing.md says how to get it"))
}

/// A port that nothing listens on now. It is below those that the system gives to others meanwhile.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let port = 20_000 + (std::process::id() * 16 + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port as u16)) {
            return listener.local_addr().unwrap().port();
        }
    }
}

/// A store that this machine can reach.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) scheme: &'static str,
    pub(crate) port: u16,
    /// What follows the port in the endpoint.
    below: &'static str,
    pub(crate) variables: Vec<(&'static str, &'static str)>,
}

impl Store {
    /// One that speaks like S3.
    pub(crate) fn s3(port: u16) -> Self {
        let variables = vec![("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)];
        Store { scheme: "s3", port, below: "", variables }
    }

    /// One that speaks like Google's, and asks for no credentials.
    pub(crate) fn gcs(port: u16) -> Self {
        // Without a signature the library still looks for credentials before a write.
        let nobody = r#"{"disable_oauth": true, "client_email": "", "private_key_id": "", "private_key": ""}"#;
        Store { scheme: "gs", port, below: "", variables: vec![("GOOGLE_SERVICE_ACCOUNT_KEY", nobody)] }
    }

    pub(crate) fn url(&self, bucket: &str, prefix: &str) -> String {
        let Store { scheme, port, below, .. } = self;
        if *scheme == "nats" {
            return format!("nats://127.0.0.1:{port}/{bucket}/{}", prefix.replace('/', "."));
        }
        format!("{scheme}://{bucket}/{prefix}?endpoint=http://127.0.0.1:{port}{below}")
    }

    /// Gives a command the credentials of this store, and none of other stores.
    pub(crate) fn dress<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for (name, _) in std::env::vars_os() {
            if ["AWS_", "AZURE_", "GOOGLE_", "NATS_"].iter().any(|start| name.to_string_lossy().starts_with(start)) {
                command.env_remove(name);
            }
        }
        command.env("NO_PROXY", "127.0.0.1").envs(self.variables.iter().copied())
    }
}

/// A server that ends with the test.
pub(crate) struct Server {
    pub(crate) store: Store,
    command: Command,
    child: Child,
    dir: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            eprintln!("the server's log: {log}");
        }
    }
}

impl Server {
    fn start(mut command: Command, dir: tempfile::TempDir, store: Store) -> Self {
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let (out, err) = (log.try_clone().unwrap(), log);
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap();
        let server = Server { store, command, child, dir };
        server.wait();
        server
    }

    /// Waits until it serves.
    fn wait(&self) {
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", self.store.port)).is_err() {
            assert!(Instant::now() < until, "the server does not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again after a kill, with what it had.
    pub(crate) fn start_again(&mut self) {
        self.child = self.command.spawn().unwrap();
        self.wait();
    }

    /// A directory with the bucket `bucket`, as several servers keep it.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir_all(data.join("bucket")).unwrap();
        (dir, data)
    }

    /// VersityGW over a directory.
    pub(crate) fn versitygw() -> Result<Self, String> {
        let binary = binary("UNTORN_TEST_VERSITYGW", "versitygw")?;
        let ((dir, data), port) = (Self::place(), free_port());
        let mut command = Command::new(binary);
        command.env("ROOT_ACCESS_KEY", KEY).env("ROOT_SECRET_KEY", SECRET);
        command.args(["--port", &format!("127.0.0.1:{port}"), "--quiet", "posix"]).arg(data);
        Ok(Self::start(command, dir, Store::s3(port)))
    }

    /// MinIO over a directory.
    pub(crate) fn minio() -> Result<Self, String> {
        let binary = binary("UNTORN_TEST_MINIO", "minio")?;
        let ((dir, data), port, console) = (Self::place(), free_port(), free_port());
        let mut command = Command::new(binary);
        command.env("MINIO_ROOT_USER", KEY).env("MINIO_ROOT_PASSWORD", SECRET).env("HOME", dir.path());
        command.args(["server", "--quiet", "--address", &format!("127.0.0.1:{port}")]);
        command.args(["--console-address", &format!("127.0.0.1:{console}")]).arg(data);
        Ok(Self::start(command, dir, Store::s3(port)))
    }

    /// The emulator of Google's store.
    pub(crate) fn fake_gcs() -> Result<Self, String> {
        let binary = binary("UNTORN_TEST_FAKE_GCS", "fake-gcs-server")?;
        let ((dir, data), port) = (Self::place(), free_port());
        let mut command = Command::new(binary);
        command.args(["-scheme", "http", "-host", "127.0.0.1", "-port", &port.to_string()]);
        command.args(["-public-host", &format!("127.0.0.1:{port}"), "-backend", "memory", "-data"]).arg(data);
        Ok(Self::start(command, dir, Store::gcs(port)))
    }

    /// NATS with JetStream, which makes each message durable before it answers.
    #[cfg(feature = "nats")]
    pub(crate) fn nats() -> Result<Self, String> {
        let binary = binary("UNTORN_TEST_NATS", "nats-server")?;
        let ((dir, data), port) = (Self::place(), free_port());
        let config = dir.path().join("config");
        let text = format!(
            "listen: 127.0.0.1:{port}\nauthorization {{ user: {KEY}, password: {SECRET} }}\n\
             jetstream {{ store_dir: {data:?}, sync_interval: always }}\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(binary);
        command.arg("-c").arg(config);
        let variables = vec![("NATS_USER", KEY), ("NATS_PASSWORD", SECRET)];
        Ok(Self::start(command, dir, Store { scheme: "nats", port, below: "", variables }))
    }

    /// The emulator of Azure. Its container is made by a signed request.
    pub(crate) fn azurite() -> Result<Self, String> {
        let binary = binary("UNTORN_TEST_AZURITE", "azurite-blob")?;
        let python = binary_of_python()?;
        let ((dir, data), port) = (Self::place(), free_port());
        let mut command = Command::new(binary);
        command.args(["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--blobHost", "127.0.0.1"]);
        command.args(["--blobPort", &port.to_string(), "-l"]).arg(data);
        let variables = vec![("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT), ("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)];
        let store = Store { scheme: "az", port, below: "/devstoreaccount1", variables };
        let server = Self::start(command, dir, store);
        create_container(&python, port);
        Ok(server)
    }
}

fn binary_of_python() -> Result<PathBuf, String> {
    untorn_testing::find_program("python3").ok_or_else(|| "needs the program python3".to_owned())
}

fn create_container(python: &Path, port: u16) {
    let code = "
import base64, email.utils, hashlib, hmac, sys, urllib.request
port, account, key = sys.argv[1:]
date = email.utils.formatdate(usegmt=True)
signed = 'PUT' + 12 * '\\n' + f'x-ms-date:{date}\\nx-ms-version:2021-08-06\\n'
signed += f'/{account}/{account}/bucket\\nrestype:container'
mac = hmac.new(base64.b64decode(key), signed.encode(), hashlib.sha256).digest()
url = f'http://127.0.0.1:{port}/{account}/bucket?restype=container'
headers = {'x-ms-date': date, 'x-ms-version': '2021-08-06', 'Content-Length': '0'}
headers['Authorization'] = f'SharedKey {account}:' + base64.b64encode(mac).decode()
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
    urllib.request.Request(url, method='PUT', headers=headers))
";
    let mut command = Command::new(python);
    untorn_testing::programs::succeed(command.args(["-c", code, &port.to_string(), ACCOUNT, ACCOUNT_KEY]));
}
