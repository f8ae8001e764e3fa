//! What a process has mapped of our files in memory: asked of the kernel, as who holds a file is.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// What the kernel calls files in memory that programs map in the place of their own.
pub(crate) const NAME: &str = "untorn-twin";

/// A part of a process's memory that maps such a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Where in the file it begins.
    pub(crate) offset: u64,
    /// `PROT_READ` and so on.
    pub(crate) protection: i32,
    /// Of the file in memory.
    pub(crate) inode: u64,
}

impl Area {
    /// The part of it that lies in a range; `None` if nothing does.
    pub(crate) fn within(self, start: usize, end: usize) -> Option<Area> {
        let (from, to) = (self.start.max(start), self.end.min(end));
        let offset = self.offset + from.saturating_sub(self.start) as u64;
        (from < to).then_some(Area { start: from, end: to, offset, ..self })
    }

    /// The parts of it that do not lie in the addresses of another.
    pub(crate) fn without(self, other: &Area) -> impl Iterator<Item = Area> + use<> {
        [self.within(0, other.start), self.within(other.end, usize::MAX)].into_iter().flatten()
    }
}

/// The areas of a process, without the places that were claimed. A program may have thousands of mappings, and each
/// of them is looked for among all of these.
pub(crate) struct Unclaimed {
    by_start: BTreeMap<usize, Area>,
    is_alive: bool,
}

impl Unclaimed {
    /// What a process has now.
    ///
    /// # Errors
    /// As of [`areas`].
    pub(crate) fn of(process: u32) -> io::Result<Self> {
        let by_start: BTreeMap<usize, Area> = areas(process)?.into_iter().map(|area| (area.start, area)).collect();
        Ok(Unclaimed { is_alive: !by_start.is_empty(), by_start })
    }

    /// Whether the process had any area.
    pub(crate) fn is_alive(&self) -> bool {
        self.is_alive
    }

    /// The areas of which some lies in a place.
    pub(crate) fn over(&self, place: &Area) -> impl Iterator<Item = &Area> {
        let start = place.start;
        self.by_start.range(..place.end).rev().map(|(_, area)| area).take_while(move |area| area.end > start)
    }

    /// Claims a place.
    pub(crate) fn claim(&mut self, place: &Area) {
        let over: Vec<Area> = self.over(place).copied().collect();
        for area in over {
            self.by_start.remove(&area.start);
            self.by_start.extend(area.without(place).map(|rest| (rest.start, rest)));
        }
    }
}

/// The areas of a process, in the order of their addresses. None of one that has ended. Its threads share them; the
/// first may have ended, and has none then.
///
/// # Errors
/// EACCES for a process that may not be looked into.
pub(crate) fn areas(process: u32) -> io::Result<Vec<Area>> {
    Ok(text(process, "maps")?.lines().filter_map(area).collect())
}

/// Those of them to which nobody can hear of stores: they are not registered for it.
///
/// # Errors
/// As of [`areas`].
pub(crate) fn unregistered(process: u32) -> io::Result<Vec<Area>> {
    Ok(without_watch(&text(process, "smaps")?))
}

/// What a file of the kernel says of the memory of a process.
fn text(process: u32, file: &str) -> io::Result<String> {
    let mut text = lines(Path::new(&format!("/proc/{process}")), file)?;
    if text.is_empty() {
        for task in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
            text = lines(&task.path(), file)?;
            if !text.is_empty() {
                break;
            }
        }
    }
    // Paths may be any bytes; all else is ASCII.
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The areas of ours in proc_pid_smaps(5) of which the kernel says that they are not registered.
fn without_watch(text: &str) -> Vec<Area> {
    let (mut found, mut last) = (Vec::new(), None);
    for line in text.lines() {
        match line.strip_prefix("VmFlags:") {
            Some(flags) if !flags.split_ascii_whitespace().any(|flag| flag == "uw") => found.extend(last.take()),
            Some(_) => last = None,
            None => last = area(line).or(last),
        }
    }
    found
}

/// What the kernel says of the memory of a thread; nothing of one that has ended.
fn lines(task: &Path, file: &str) -> io::Result<Vec<u8>> {
    match fs::read(task.join(file)) {
        Err(error) if crate::holders::is_gone(&error) => Ok(Vec::new()),
        read => read,
    }
}

/// The area of a line, if it is one of ours.
fn area(line: &str) -> Option<Area> {
    // proc_pid_maps(5): addresses, permissions, offset, device, inode, path.
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?.as_bytes();
    let (offset, _, inode, path) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    if path.strip_prefix("/memfd:")? != NAME || permissions.get(3) != Some(&b's') {
        return None;
    }
    let bits = [(b'r', 1), (b'w', 2), (b'x', 4)];
    let protection =
        bits.iter().zip(permissions).filter(|((letter, _), found)| letter == *found).map(|((_, bit), _)| bit);
    Some(Area {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        protection: protection.sum(),
        inode: inode.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unregistered_mappings_are_found() {
        let part = |start: &str, path: &str, flags: &str| {
            format!("{start}000-{start}fff r--s 00000000 00:01 1029  {path}\nSize: 4 kB\nVmFlags: rd sh {flags}\n")
        };
        let ours = "/memfd:untorn-twin (deleted)";
        let text = [part("1", ours, "uw ms"), part("2", ours, "mr ms"), part("3", "/tmp/f", "ms"), part("4", ours, "")];
        let found: Vec<_> = without_watch(&text.concat()).into_iter().map(|area| area.start).collect();
        assert_eq!(found, [0x2000, 0x4000]);
        assert_eq!(unregistered(u32::MAX).unwrap(), []);
    }

    #[test]
    fn a_line_is_read() {
        let line =
            "7f0000001000-7f0000004000 rw-s 00002000 00:01 1029                       /memfd:untorn-twin (deleted)";
        let found = area(line).unwrap();
        let wanted =
            Area { start: 0x7f00_0000_1000, end: 0x7f00_0000_4000, offset: 0x2000, protection: 3, inode: 1029 };
        assert_eq!(found, wanted);
        let part = found.within(0x7f00_0000_2000, usize::MAX).unwrap();
        assert_eq!((part.start, part.end, part.offset), (0x7f00_0000_2000, wanted.end, 0x3000));
        assert_eq!(found.within(0, wanted.start), None);
        let rest: Vec<_> = found.without(&part).map(|rest| (rest.start, rest.end, rest.offset)).collect();
        assert_eq!(rest, [(wanted.start, part.start, wanted.offset)]);
        let middle = Area { start: part.start, end: part.start + 0x1000, ..part };
        assert_eq!(found.without(&middle).map(|rest| rest.offset).collect::<Vec<_>>(), [0x2000, 0x4000]);
        for other in [line.replace("rw-s", "rw-p"), line.replace("/memfd:", "/tmp/"), line.replace("twin", "twins")] {
            assert_eq!(area(&other), None, "{other}");
        }
        assert_eq!(areas(u32::MAX).unwrap(), []);
        let mut unclaimed = Unclaimed::of(u32::MAX).unwrap();
        assert!(!unclaimed.is_alive());
        let next = Area { start: found.end, end: found.end + 0x2000, ..found };
        unclaimed.by_start.extend([found, next].map(|area| (area.start, area)));
        let starts =
            |unclaimed: &Unclaimed, place: &Area| unclaimed.over(place).map(|area| area.start).collect::<Vec<_>>();
        assert_eq!(starts(&unclaimed, &found), [found.start]);
        assert_eq!(starts(&unclaimed, &next), [next.start]);
        // From within the one to within the other.
        let place = Area { start: middle.end, end: next.start + 0x1000, ..found };
        assert_eq!(starts(&unclaimed, &place), [next.start, found.start]);
        unclaimed.claim(&place);
        assert_eq!(starts(&unclaimed, &place), []);
        assert_eq!(starts(&unclaimed, &middle), [found.start]);
        unclaimed.claim(&middle);
        let all = Area { start: 0, end: usize::MAX, ..found };
        assert_eq!(starts(&unclaimed, &all), [next.start + 0x1000, found.start]);
    }
}
