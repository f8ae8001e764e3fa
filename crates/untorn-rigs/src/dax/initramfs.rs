//! The guest's user space: busybox, the program under test with its libraries, and modules.

use std::fs;
use std::path::Path;

use super::cpio::Archive;
use super::kernel::Kernel;
use super::modules::Modules;
use super::tools;
use crate::error::{Error, Result};

/// Modules in loading order, by their name for the guest's `load`. `base` is loaded at boot: everything except the
/// modules for the memory under test, so that the saved machine has never accessed that memory.
const GROUPS: &[(&str, &[&str])] = &[
    ("base", &["virtio_pci", "virtio_console", "ext4", "xfs"]),
    ("nvdimm", &["nfit", "nd_btt", "nd_pmem"]),
    ("virtio-pmem", &["nd_btt", "nd_pmem", "virtio_pmem"]),
];

/// Takes commands from the second serial port, one per line, and answers as [`Console`](super::console::Console)
/// expects. Reports leave through the virtio console: the kernel returns from a write to it only after the host has
/// taken the bytes, so no report can be lost on the way. The script keeps it open: at the last close the kernel would
/// reset raw mode, and turn each byte 10 of a report into two bytes.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /mnt /tmp
load() {
    while read -r module; do
        grep -q "^$module " /proc/modules || insmod "/modules/$module.ko" || return 1
    done < "/modules/$1"
}
appear() {
    for wait in $(seq 6000); do
        [ -b "$1" ] && return
        usleep 10000
    done
    echo "$1 does not appear"
    return 1
}
load base
exec < /dev/ttyS1 > /dev/ttyS1 2>&1 3<> /dev/hvc0
stty raw -echo
stty raw -echo <&3
printf '\001ready\n'
while read -r line; do
    eval "$line"
    printf '\001%d\n' "$?"
done
"#;

/// Builds it.
pub(super) fn build(kernel: &Kernel, program: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["proc", "sys", "dev"] {
        archive.directory(directory);
    }
    archive.file("init", INIT.as_bytes());
    archive.file("bin/busybox", &read(&tools::find("busybox")?)?);
    archive.file("bin/untorn", &read(program)?);
    for library in libraries(program)? {
        archive.file(library.trim_start_matches('/'), &read(Path::new(&library))?);
    }
    let modules = Modules::below(&kernel.modules)?;
    let mut packed = std::collections::BTreeSet::new();
    for (group, wanted) in GROUPS {
        let mut list = String::new();
        for module in modules.closure(wanted)? {
            list += &module.name;
            list.push('\n');
            let path = format!("modules/{}.ko", module.name);
            if packed.insert(module.name) {
                archive.file(&path, &module.content);
            }
        }
        archive.file(&format!("modules/{group}"), list.as_bytes());
    }
    Ok(archive.finish())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io_at("read", path))
}

/// The shared libraries of a program, including its loader. A static program has none, and `ldd` fails for it.
fn libraries(program: &Path) -> Result<Vec<String>> {
    let output = tools::command("ldd")?.arg(program).output().map_err(Error::system("run ldd"))?;
    Ok(library_paths(&String::from_utf8_lossy(&output.stdout)))
}

fn library_paths(words: &str) -> Vec<String> {
    words
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_found_in_the_words_of_ldd() {
        let words = "\tlinux-vdso.so.1 (0x00007fc8)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                     \t/lib64/ld-linux-x86-64.so.2 (0x00007fc8)\n";
        assert_eq!(library_paths(words), ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert!(library_paths("\tnot a dynamic executable\n").is_empty());
    }
}
