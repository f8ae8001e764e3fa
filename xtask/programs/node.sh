# Files as node has them: synchronous calls, those of its threads, and streams.
cat >n.js <<'J'
const fs = require('fs'), path = require('path');
fs.writeFileSync('a', 'one\n');
fs.appendFileSync('a', 'two\n');
const fd = fs.openSync('b', 'w+');
fs.writeSync(fd, Buffer.from('abcdef'), 0, 6, 10);
fs.ftruncateSync(fd, 13);
fs.fsyncSync(fd);
const got = Buffer.alloc(20);
console.log(fs.readSync(fd, got, 0, 20, 0), got.toString('hex'), fs.fstatSync(fd).size);
fs.writevSync(fd, [Buffer.from('x'), Buffer.from('yz')], 3);
fs.closeSync(fd);
fs.copyFileSync('a', 'c');
fs.renameSync('c', 'd');
(async () => {
    await fs.promises.writeFile('e', 'x'.repeat(300000));
    const handle = await fs.promises.open('e', 'r+');
    await handle.write('hello', 100000);
    await handle.datasync();
    console.log((await handle.stat()).size, (await handle.read(Buffer.alloc(5), 0, 5, 100000)).buffer.toString());
    await handle.close();
    await new Promise((done, failed) => fs.createReadStream('e').pipe(fs.createWriteStream('f')).on('finish', done).on('error', failed));
    await fs.promises.copyFile('f', 'g');
    await Promise.all([...Array(20).keys()].map(n => fs.promises.writeFile('h' + n, String(n).repeat(1000))));
    console.log((await fs.promises.readFile('g')).equals(await fs.promises.readFile('e')));
})();
J
# A newer node has io_uring do its calls where it may, and is another program then.
UV_USE_IO_URING=0 node n.js
