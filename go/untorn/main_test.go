package untorn_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"untorn"
)

const page = 4096

// The variable that makes this program one of the children below, and their arguments.
const childVariable = "UNTORN_GO_CHILD"

var children = map[string]func(path string){
	"updates":     updateUntilKilled,
	"map commits": commitUntilKilled,
	"fault":       faultOfGo,
	"serves":      func(path string) { serve(path, untorn.Options{}) },
	"serves none": func(path string) { serve(path, untorn.Options{NoServeSnapshots: true}) },
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		children[name](os.Args[1])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child starts this program as one of the children.
func child(name, path string) *exec.Cmd {
	command := exec.Command(os.Args[0], path)
	command.Env = append(os.Environ(), childVariable+"="+name)
	return command
}

// cases is how often a test repeats itself: more with UNTORN_LONG=1.
func cases(short, long int) int {
	if os.Getenv("UNTORN_LONG") == "1" {
		return long
	}
	return short
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func scratch(t *testing.T) string {
	return filepath.Join(t.TempDir(), "data")
}

// created is a new open file of so many bytes.
func created(t *testing.T, size int64, opts untorn.Options) *untorn.File {
	t.Helper()
	opts.Create, opts.Excl, opts.Size = true, true, size
	file, err := untorn.Open(scratch(t), &opts)
	check(t, err)
	t.Cleanup(func() { file.Close() })
	return file
}

func mapped(t *testing.T, size int64, opts *untorn.Options) *untorn.Map {
	t.Helper()
	m, err := untorn.OpenMap(scratch(t), size, opts)
	check(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func word(from io.ReaderAt, off int64) (uint64, error) {
	var p [8]byte
	_, err := from.ReadAt(p[:], off)
	return binary.LittleEndian.Uint64(p[:]), err
}

func setWord(to io.WriterAt, off int64, value uint64) error {
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], value)
	_, err := to.WriteAt(p[:], off)
	return err
}

// killed starts a child that says one number a line, the last that it has committed, and kills it after so many lines.
// It returns the last number that the child said.
func killed(t *testing.T, name, path string, after int) uint64 {
	t.Helper()
	command := child(name, path)
	said, err := command.StdoutPipe()
	check(t, err)
	command.Stderr = os.Stderr
	check(t, command.Start())
	lines := bufio.NewScanner(said)
	var last uint64
	for line := 0; lines.Scan(); line++ {
		if _, err := fmt.Sscan(lines.Text(), &last); err != nil {
			t.Errorf("the child said %q", lines.Text())
		}
		if line == after {
			check(t, command.Process.Kill())
		}
	}
	err = command.Wait()
	if exit, ok := err.(*exec.ExitError); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended by itself: %v", err)
	}
	return last
}

func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q is not in %q", word, text)
		}
	}
}
