package untorn_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"untorn"
)

// Pages that a snapshot keeps are in a file without a name once they are more than its memory may have.
func TestSnapshotMemory(t *testing.T) {
	for memory, expected := range map[int64]int{0: 0, 1: 1, page: 1, 2 * page: 0} {
		file := created(t, 2*page, untorn.Options{SnapshotMemory: memory})
		nameless := func() int {
			count := 0
			for _, link := range must(filepath.Glob("/proc/self/fd/*")) {
				target, err := os.Readlink(link)
				in := err == nil && strings.HasPrefix(target, filepath.Dir(file.Path())+"/")
				if in && strings.HasSuffix(target, " (deleted)") {
					count++
				}
			}
			return count
		}
		// Over both pages. No page of zeros is kept.
		check(t, setWord(file, page-4, 1<<32+1))
		check(t, file.Commit())
		before := nameless()
		snapshot := must(file.Snapshot())
		check(t, setWord(file, page-4, 0))
		check(t, file.Commit())
		if seen, err := word(snapshot, page-4); seen != 1<<32+1 || err != nil {
			t.Errorf("a commit changed a snapshot: %d, %v", seen, err)
		}
		if found := nameless() - before; found != expected {
			t.Errorf("%d files without a name with SnapshotMemory %d", found, memory)
		}
		check(t, snapshot.Close())
	}
}

func TestNoServeSnapshots(t *testing.T) {
	for _, name := range []string{"serves", "serves none"} {
		path := scratch(t)
		command := child(name, path)
		stdin := must(command.StdinPipe())
		said := must(command.StdoutPipe())
		command.Stderr = os.Stderr
		check(t, command.Start())
		if _, err := fmt.Fscanln(said, new(string)); err != nil {
			t.Error(err)
		}
		snapshot, err := untorn.OpenSnapshot(path)
		if name == "serves" {
			check(t, err)
			check(t, snapshot.Close())
		} else if !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%v", err)
		}
		check(t, stdin.Close())
		check(t, command.Wait())
	}
}

// serve holds the file open until its input ends.
func serve(path string, opts untorn.Options) {
	opts.Create, opts.Size = true, page
	file := must(untorn.Open(path, &opts))
	fmt.Println("open")
	must(io.Copy(io.Discard, os.Stdin))
	if err := file.Close(); err != nil {
		panic(err)
	}
}
