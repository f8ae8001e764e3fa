//! Kernel modules and their dependencies.
//!
//! A package has no list of dependencies (it is made at installation), so they are read from the modules themselves:
//! section `.modinfo`, strings `depends=a,b` that end with a zero byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::tools;
use crate::error::{Error, Result};

/// One module, ready to be loaded.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: String,
    pub(super) content: Vec<u8>,
}

/// The modules of one kernel.
#[derive(Debug)]
pub(super) struct Modules {
    files: BTreeMap<String, PathBuf>,
    builtin: String,
}

impl Modules {
    /// The modules below a directory `lib/modules/RELEASE`.
    pub(super) fn below(directory: &Path) -> Result<Self> {
        let mut modules = Modules { files: BTreeMap::new(), builtin: String::new() };
        let builtin = directory.join("modules.builtin");
        modules.builtin = fs::read_to_string(&builtin).map_err(Error::io_at("read", &builtin))?;
        modules.walk(directory)?;
        Ok(modules)
    }

    fn walk(&mut self, directory: &Path) -> Result<()> {
        for entry in fs::read_dir(directory).map_err(Error::io_at("read", directory))? {
            let entry = entry.map_err(Error::io_at("read", directory))?;
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.walk(&path)?;
            } else if let Some(name) = module_name(&path) {
                self.files.insert(name, path);
            }
        }
        Ok(())
    }

    /// These modules and their dependencies, in loading order. Parts of the kernel itself are omitted.
    pub(super) fn closure(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let mut found = Vec::new();
        for name in wanted {
            self.add(name, &mut found)?;
        }
        Ok(found)
    }

    fn add(&self, name: &str, found: &mut Vec<Module>) -> Result<()> {
        if found.iter().any(|module| module.name == name) || self.is_builtin(name) {
            return Ok(());
        }
        let path = self
            .files
            .get(name)
            .ok_or_else(|| Error::missing(format!("the kernel module {name}"), "give --kernel a kernel that has it"))?;
        let content = read(path)?;
        for needed in depends(&content) {
            self.add(&needed, found)?;
        }
        found.push(Module { name: name.to_owned(), content });
        Ok(())
    }

    fn is_builtin(&self, name: &str) -> bool {
        self.builtin.lines().any(|line| module_name(Path::new(line)).as_deref() == Some(name))
    }
}

/// The name of a module by its file name; `None` for another file. The kernel treats dashes and underscores alike.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(".xz").unwrap_or(name).strip_suffix(".ko")?;
    Some(stem.replace('-', "_"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_some_and(|extension| extension == "xz") {
        return tools::run("xz", &["-dc", &path.to_string_lossy()], Path::new("/"));
    }
    fs::read(path).map_err(Error::io_at("read", path))
}

fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let rest = &module[at + KEY.len()..];
    let value = String::from_utf8_lossy(rest.split(|&byte| byte == 0).next().unwrap_or_default());
    value.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_precede_a_module_and_built_ins_are_left_out() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &str| fs::write(place.path().join(name), content).unwrap();
        fs::create_dir(place.path().join("kernel")).unwrap();
        write("modules.builtin", "kernel/lib/crc32.ko\n");
        write("kernel/top.ko", "x\0license=GPL\0depends=low-er,crc32,other\0\0");
        write("kernel/low-er.ko", "x\0depends=\0");
        write("kernel/other.ko", "x\0depends=low-er\0");
        let modules = Modules::below(place.path()).unwrap();
        let names = |wanted: &[&str]| -> Vec<String> {
            modules.closure(wanted).unwrap().into_iter().map(|module| module.name).collect()
        };
        assert_eq!(names(&["top"]), ["low_er", "other", "top"]);
        assert_eq!(names(&["crc32"]), Vec::<String>::new());
        assert!(matches!(modules.closure(&["none"]), Err(Error::Missing { .. })));
    }
}
