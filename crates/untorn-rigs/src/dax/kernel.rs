//! A stock kernel to boot: Debian's own package, fetched through apt and unpacked, never installed.

use std::fs;
use std::path::{Path, PathBuf};

use super::tools;
use super::version::{self, STOCK};
use crate::error::{Error, Result};

/// An unpacked kernel package.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its release name, for example `6.1.0-56-cloud-amd64`.
    pub release: String,
    /// The image to boot.
    pub(super) image: PathBuf,
    /// The directory of its modules.
    pub(super) modules: PathBuf,
}

impl Kernel {
    /// Finds a kernel: without `wanted`, the distribution's own; otherwise the newest package of that version, a
    /// package file, or a directory with an unpacked package. Packages are fetched and unpacked once, below `cache`.
    ///
    /// # Errors
    /// [`Error::Missing`] if no package is available.
    pub fn find(wanted: Option<&str>, cache: &Path) -> Result<Self> {
        fs::create_dir_all(cache).map_err(Error::io_at("make", cache))?;
        if let Some(path) = wanted.map(Path::new).filter(|path| path.exists()) {
            return if path.is_dir() { Self::at(path) } else { Self::unpack(path, cache) };
        }
        let package = package(wanted, cache)?;
        let unpacked = cache.join(&package);
        if unpacked.is_dir() {
            return Self::at(&unpacked);
        }
        tools::run("apt-get", &["-q", "-o", "Acquire::Retries=5", "download", &package], cache)?;
        let prefix = format!("{package}_");
        let file = entries(cache)?.into_iter().find(|path| is_package(path) && name(path).starts_with(&prefix));
        let file =
            file.ok_or_else(|| Error::failed(format!("fetch {package}"), "apt-get download left no package file"))?;
        let kernel = Self::unpack(&file, cache)?;
        fs::remove_file(&file).map_err(Error::io_at("remove", &file))?;
        Ok(kernel)
    }

    /// A kernel in the directory of its unpacked package.
    fn at(directory: &Path) -> Result<Self> {
        let boot = directory.join("boot");
        let image = entries(&boot)?.into_iter().find(|path| name(path).starts_with("vmlinuz-"));
        let image = image.ok_or_else(|| Error::missing(format!("a kernel in {}", boot.display()), HOW))?;
        let release = name(&image).trim_start_matches("vmlinuz-").to_owned();
        let homes = ["lib/modules", "usr/lib/modules"].map(|home| directory.join(home).join(&release));
        let modules = homes.into_iter().find(|home| home.is_dir());
        let modules = modules.ok_or_else(|| Error::missing(format!("modules of the kernel {release}"), HOW))?;
        Ok(Kernel { release, image, modules })
    }

    fn unpack(file: &Path, cache: &Path) -> Result<Self> {
        let package = name(file).split('_').next().unwrap_or_default().to_owned();
        let to = cache.join(&package);
        if !to.is_dir() {
            // Use another name until it is complete, so that an interrupted run doesn't leave half a kernel for the
            // next.
            let fresh = tempfile::tempdir_in(cache).map_err(Error::io_at("create a directory in", cache))?;
            let file = file.canonicalize().map_err(Error::io_at("find", file))?;
            let words = ["-x", &file.to_string_lossy(), &fresh.path().to_string_lossy()];
            tools::run("dpkg-deb", &words, cache)?;
            fs::rename(fresh.keep(), &to).map_err(Error::io_at("make", &to))?;
        }
        Self::at(&to)
    }
}

const HOW: &str = "give --kernel a kernel package, or a directory with one unpacked by `dpkg-deb -x`";

/// The name of the package to fetch.
fn package(wanted: Option<&str>, cache: &Path) -> Result<String> {
    let found = match wanted {
        None => {
            let words = text(tools::run("apt-cache", &["depends", STOCK], cache)?);
            version::dependency(&words).map(str::to_owned)
        }
        Some(version) => {
            let prefix = format!("linux-image-{version}");
            let names = text(tools::run("apt-cache", &["pkgnames", &prefix], cache)?);
            version::newest(names.lines(), version).map(str::to_owned)
        }
    };
    found.ok_or_else(|| {
        let what = format!("a package linux-image-{}-cloud-amd64", wanted.unwrap_or("*"));
        Error::missing(what, format!("run `apt-get update`, or add a Debian release that has it; or {HOW}"))
    })
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

fn is_package(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "deb")
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).map_err(Error::io_at("read", directory))?;
    entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()
        .map_err(Error::system("read a directory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_in_an_unpacked_package_only() {
        let place = tempfile::tempdir().unwrap();
        let at = || Kernel::find(place.path().to_str(), place.path());
        fs::create_dir_all(place.path().join("boot")).unwrap();
        assert!(matches!(at(), Err(Error::Missing { .. })));
        fs::write(place.path().join("boot/vmlinuz-6.1.0-1"), "").unwrap();
        fs::create_dir_all(place.path().join("usr/lib/modules/6.1.0-1")).unwrap();
        assert_eq!(at().unwrap().release, "6.1.0-1");
    }
}
