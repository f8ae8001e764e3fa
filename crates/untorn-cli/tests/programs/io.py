import fcntl, io, os, shutil, sqlite3, subprocess, sys, tempfile, zipfile, tarfile

name = "f.managed"
with open(name, "w") as f:
    f.write("line\n" * 1000)
    f.flush()
    os.fsync(f.fileno())
    print(f.tell(), os.fstat(f.fileno()).st_size, os.path.getsize(name))
with open(name, "r+b", buffering=0) as f:
    print(f.seek(-5, io.SEEK_END), f.read(), f.truncate(100), f.seek(0, io.SEEK_END), f.write(b"tail"), f.readinto(bytearray(3)))
with open(name, "a+") as f:
    f.write("appended")
    f.seek(0)
    print(len(f.read()))
print(shutil.copyfile(name, "copy.managed"), open("copy.managed", "rb").read() == open(name, "rb").read())
shutil.move("copy.managed", "moved.managed")
print(os.path.exists("copy.managed"), os.path.getsize("moved.managed"))
with tempfile.NamedTemporaryFile(dir=".", suffix=".managed") as f:
    f.write(b"x" * 70000)
    f.flush()
    print(os.path.getsize(f.name), f.read())
with zipfile.ZipFile("z.managed", "w") as z:
    z.writestr(zipfile.ZipInfo("a"), "a" * 10000)
print(zipfile.ZipFile("z.managed").read("a") == b"a" * 10000)
with tarfile.open("t.managed", "w") as t:
    info = tarfile.TarInfo("member")
    info.size = 5000
    t.addfile(info, io.BytesIO(b"m" * 5000))
print(tarfile.open("t.managed").extractfile("member").read() == b"m" * 5000)
with open("out.managed", "wb") as out:
    subprocess.run(["sh", "-c", "echo from a child; seq 1 100"], stdout=out, check=True)
print(len(open("out.managed").read()), subprocess.run(["cat"], stdin=open("out.managed"), capture_output=True).stdout[:12])
fd = os.open(name, os.O_RDWR)
print(os.sendfile(os.open("sent.managed", os.O_WRONLY | os.O_CREAT), fd, 0, 50), os.lseek(fd, 0, os.SEEK_CUR))
fcntl.lockf(fd, fcntl.LOCK_EX)
os.posix_fallocate(fd, 0, 5000)
print(os.preadv(fd, [bytearray(10), bytearray(20)], 3), os.pwritev(fd, [b"one", b"two"], 4000), os.fstat(fd).st_size)
pid = os.fork()
if pid == 0:
    os.write(fd, b"child")
    os._exit(0)
os.waitpid(pid, 0)
print(os.lseek(fd, 0, os.SEEK_CUR))
os.close(fd)
for journal in "delete", "truncate", "persist", "memory", "off":
    c = sqlite3.connect("db.managed")
    c.execute("pragma journal_mode=" + journal)
    c.execute("create table if not exists t(a, b)")
    with c:
        c.executemany("insert into t values(?, ?)", [(i, "x" * i) for i in range(100)])
    with c:
        c.execute("delete from t where a % 3 = 0")
    print(c.execute("select count(*), sum(length(b)) from t").fetchone(), c.execute("pragma integrity_check").fetchone())
    c.close()
for leftover in "db.managed", "db.managed-journal":
    if os.path.exists(leftover):
        os.remove(leftover)
