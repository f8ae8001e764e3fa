//! A machine in QEMU. Killing it is the power cut: the image holds everything that its processor executed, and nothing
//! else.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::console::Console;
use super::image;
use super::qmp::Qmp;
use super::tools;
use crate::error::{Error, Result};

/// The files of a machine, all in QEMU's working directory, so that no path needs QEMU's quoting.
pub(super) const IMAGE: &str = "memory.img";
pub(super) const STATE: &str = "state";
pub(super) const REPORTS: &str = "reports";
pub(super) const KERNEL_LOG: &str = "kernel.log";
const QEMU_LOG: &str = "qemu.log";
const QMP: &str = "qmp.sock";
const CONSOLE: &str = "console.sock";

/// The maximum silence of a guest. Emulation on a busy machine is slow.
const GUEST_SILENCE_TIMEOUT: Duration = Duration::from_secs(180);

/// The kind of device that the image is for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// An NVDIMM: DAX, and `MAP_SYNC` works.
    Nvdimm,
    /// A virtio-pmem device: DAX, but stores are durable only after an `fsync`, so the kernel refuses `MAP_SYNC`.
    VirtioPmem,
}

/// The kernel, user space and image of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine<'a> {
    /// The kernel's image.
    pub(super) kernel: &'a Path,
    /// The first and only root file system.
    pub(super) initramfs: &'a Path,
    /// The kind of the image under test.
    pub(super) memory: Memory,
}

/// A running machine. Dropping it kills the machine, and so does the end of the thread that started it.
#[derive(Debug)]
pub(super) struct Vm {
    child: Child,
    qmp: Qmp,
    /// The line into the guest.
    pub(super) console: Console,
}

impl Vm {
    /// Boots, and waits until the guest is ready.
    pub(super) fn boot(machine: Machine<'_>, directory: &Path) -> Result<Self> {
        let mut vm = Self::start(machine, directory, &[])?;
        vm.console.wait_ready().map_err(|error| explain(error, directory))?;
        Ok(vm)
    }

    /// Resumes the state of [`save`](Vm::save), with the current image under test.
    pub(super) fn resume(machine: Machine<'_>, directory: &Path) -> Result<Self> {
        let mut vm = Self::start(machine, directory, &["-incoming", "defer"])?;
        let mut resumed = || {
            vm.ignore_shared()?;
            vm.qmp.execute("migrate-incoming", json!({ "uri": format!("exec:cat {STATE}") }))?;
            vm.qmp.wait_status("query-status", "running")
        };
        resumed().map_err(|error| explain(error, directory))?;
        Ok(vm)
    }

    /// Saves the machine's state without the image under test, and resumes the machine.
    pub(super) fn save(&mut self) -> Result<()> {
        self.ignore_shared()?;
        // The target is a file, not a network, so don't limit the bandwidth.
        self.qmp.execute("migrate-set-parameters", json!({ "max-bandwidth": 1u64 << 40 }))?;
        self.qmp.execute("migrate", json!({ "uri": format!("exec:cat > {STATE}") }))?;
        self.qmp.wait_status("query-migrate", "completed")?;
        self.qmp.execute("cont", json!({}))?;
        Ok(())
    }

    /// Excludes shared memory, which is the image under test, from saved states.
    fn ignore_shared(&mut self) -> Result<()> {
        let capability = json!({ "capability": "x-ignore-shared", "state": true });
        self.qmp.execute("migrate-set-capabilities", json!({ "capabilities": [capability] }))?;
        Ok(())
    }

    /// Cuts the power.
    pub(super) fn cut(mut self) -> Result<()> {
        self.child.kill().and_then(|()| self.child.wait()).map_err(Error::system("kill QEMU"))?;
        Ok(())
    }

    fn start(machine: Machine<'_>, directory: &Path, more: &[&str]) -> Result<Self> {
        for socket in [QMP, CONSOLE] {
            // Remove an earlier machine's socket. If that fails, QEMU reports it.
            let _ = fs::remove_file(directory.join(socket));
        }
        let log = directory.join(QEMU_LOG);
        let log = File::create(&log).map_err(Error::io_at("create", &log))?;
        // A killed rig must not leave a machine behind.
        let mut child = tools::command("setpriv")?
            .args(["--pdeathsig", "KILL", "--"])
            .arg(tools::find("qemu-system-x86_64")?)
            .args(["-accel", "tcg", "-cpu", "max", "-smp", "1", "-display", "none", "-monitor", "none"])
            .args(["-no-reboot", "-nic", "none", "-nodefaults"])
            .args(["-machine", "pc,nvdimm=on", "-m", "512M,slots=2,maxmem=4G"])
            .args(memory(machine.memory))
            .args([
                "-chardev",
                &format!("socket,id=qmp,path={QMP},server=on,wait=off"),
                "-mon",
                "chardev=qmp,mode=control",
            ])
            .args(["-chardev", &format!("socket,id=console,path={CONSOLE},server=on,wait=off")])
            .args(["-chardev", &format!("file,id=log,path={KERNEL_LOG}"), "-serial", "chardev:log"])
            .args(["-serial", "chardev:console", "-device", "virtio-serial-pci"])
            .args(["-chardev", &format!("file,id=reports,path={REPORTS}"), "-device", "virtconsole,chardev=reports"])
            // On a busy host the guest gets no tick for so long that its kernel gives up its timer and panics.
            .args(["-append", "console=ttyS0 panic=-1 quiet mitigations=off no_timer_check"])
            .arg("-kernel")
            .arg(machine.kernel)
            .arg("-initrd")
            .arg(machine.initramfs)
            .args(more)
            .current_dir(directory)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(Error::system("start QEMU"))?;
        match connect(&mut child, directory) {
            Ok((qmp, console)) => Ok(Vm { child, qmp, console }),
            Err(error) => {
                // It may have exited, so that connecting failed.
                let _ = child.kill();
                let _ = child.wait();
                Err(explain(error, directory))
            }
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // Both fail if the machine was already killed; there is nothing to do then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn memory(kind: Memory) -> [String; 4] {
    let size = image::LEN;
    let backing = format!("memory-backend-file,id=mem,share=on,mem-path={IMAGE},size={size}");
    let device = match kind {
        Memory::Nvdimm => "nvdimm,memdev=mem,id=medium",
        Memory::VirtioPmem => "virtio-pmem-pci,memdev=mem,id=medium",
    };
    ["-object".to_owned(), backing, "-device".to_owned(), device.to_owned()]
}

/// Connects to a machine's monitor and console. QEMU binds its sockets some time after its start.
fn connect(child: &mut Child, directory: &Path) -> Result<(Qmp, Console)> {
    let qmp = Qmp::new(dial(child, &directory.join(QMP))?)?;
    let console = Console::new(dial(child, &directory.join(CONSOLE))?, GUEST_SILENCE_TIMEOUT)?;
    Ok((qmp, console))
}

fn dial(child: &mut Child, path: &Path) -> Result<UnixStream> {
    let start = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                return Err(Error::io_at("connect to", path)(error));
            }
            Err(error) if start.elapsed() > GUEST_SILENCE_TIMEOUT => {
                return Err(Error::io_at("connect to", path)(error));
            }
            Err(_) => {}
        }
        if let Some(status) = child.try_wait().map_err(Error::system("check whether QEMU still runs"))? {
            return Err(Error::failed("start QEMU", format!("it exited: {status}")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Adds the last lines of the logs of QEMU and the guest's kernel to an error.
pub(super) fn explain(error: Error, directory: &Path) -> Error {
    let tail = |name: &str| {
        let text = fs::read(directory.join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    };
    let why = format!("{error}\nQEMU's log: {}\nthe guest kernel's log: {}", tail(QEMU_LOG), tail(KERNEL_LOG));
    Error::failed("run the emulated machine", why)
}
