# Files as Java has them: streams, channels, a mapping, locks, and a walk; compiled in the directory itself.
cat >Words.java <<'J'
import java.io.*;
import java.nio.*;
import java.nio.channels.*;
import java.nio.file.*;
import java.util.stream.*;

public class Words {
    public static void main(String[] arguments) throws Exception {
        Path files = Path.of("java");
        Files.createDirectories(files);
        Files.write(files.resolve("whole"), new byte[1000000]);
        try (BufferedWriter lines = Files.newBufferedWriter(files.resolve("lines"))) {
            for (int i = 0; i < 5000; i++) lines.write("line " + i + "\n");
        }
        try (RandomAccessFile file = new RandomAccessFile(files.resolve("random").toFile(), "rwd")) {
            for (int i = 0; i < 50; i++) { file.seek(i * 1000L); file.writeInt(i); }
            file.setLength(40000);
        }
        try (FileChannel channel = FileChannel.open(files.resolve("map"), StandardOpenOption.READ,
                StandardOpenOption.WRITE, StandardOpenOption.CREATE); FileLock lock = channel.lock()) {
            MappedByteBuffer map = channel.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20);
            for (int i = 0; i < 1 << 20; i += 5000) map.putInt(i / 4 * 4, i);
            map.force();
            channel.write(ByteBuffer.wrap("through the channel".getBytes()), 4096);
            channel.force(true);
            System.out.println(channel.size() + " " + (char) map.get(4096));
        }
        Files.copy(files.resolve("lines"), files.resolve("copy"));
        Files.move(files.resolve("copy"), files.resolve("moved"), StandardCopyOption.ATOMIC_MOVE);
        try (FileChannel from = FileChannel.open(files.resolve("moved"));
                FileChannel to = FileChannel.open(files.resolve("sent"), StandardOpenOption.WRITE, StandardOpenOption.CREATE)) {
            System.out.println(from.transferTo(0, from.size(), to));
        }
        Files.createSymbolicLink(files.resolve("link"), Path.of("sent"));
        System.out.println(Files.mismatch(files.resolve("link"), files.resolve("lines")));
        try (Stream<Path> all = Files.walk(files)) {
            System.out.println(all.map(Path::toString).sorted().collect(Collectors.joining(" ")));
        }
    }
}
J
javac -d classes Words.java
java -XX:TieredStopAtLevel=1 -cp classes Words
rm -r java
java -XX:TieredStopAtLevel=1 Words.java
sha256sum java/[a-z]*
