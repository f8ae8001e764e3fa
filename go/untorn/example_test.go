package untorn_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log"
	"os"
	"path/filepath"

	"untorn"
)

// A bucket keeps keys and values of at most 31 bytes each, in slots that hashes choose. All of them are in one file.
const (
	slots    = 1024
	slotSize = 64
	half     = slotSize / 2
)

var errNoKey = errors.New("no such key")

// find returns the slot of a key, or the free slot for it.
func find(from io.ReaderAt, key string) (slot [slotSize]byte, off int64, err error) {
	hash := fnv.New32a()
	hash.Write([]byte(key))
	for try := uint32(0); try < slots; try++ {
		off = int64((hash.Sum32()+try)%slots) * slotSize
		if _, err := from.ReadAt(slot[:], off); err != nil {
			return slot, 0, err
		}
		if slot[0] == 0 || string(slot[1:1+slot[0]]) == key {
			return slot, off, nil
		}
	}
	return slot, 0, errors.New("the bucket is full")
}

// get works in an Update and in a View, since both have ReadAt.
func get(from io.ReaderAt, key string) ([]byte, error) {
	slot, _, err := find(from, key)
	if err != nil || slot[0] == 0 {
		return nil, errors.Join(err, errNoKey)
	}
	return bytes.Clone(slot[half+1 : half+1+slot[half]]), nil
}

func put(tx *untorn.Tx, key string, value []byte) error {
	slot, off, err := find(tx, key)
	if err != nil {
		return err
	}
	if len(key) == 0 || len(key) >= half || len(value) >= half {
		return errors.New("the key or the value is too long")
	}
	slot[0], slot[half] = byte(len(key)), byte(len(value))
	copy(slot[1:half], key)
	copy(slot[half+1:], value)
	_, err = tx.WriteAt(slot[:], off)
	return err
}

func directory() (string, func()) {
	dir, err := os.MkdirTemp("", "untorn-example")
	if err != nil {
		log.Fatal(err)
	}
	return dir, func() { os.RemoveAll(dir) }
}

// Keys and values, in the way of bbolt.
func Example() {
	dir, remove := directory()
	defer remove()
	db, err := untorn.Open(filepath.Join(dir, "my.db"), &untorn.Options{Create: true, Size: slots * slotSize})
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	err = db.Update(func(tx *untorn.Tx) error {
		return errors.Join(put(tx, "answer", []byte("42")), put(tx, "question", []byte("?")))
	})
	if err != nil {
		log.Fatal(err)
	}

	err = db.View(func(s *untorn.Snapshot) error {
		value, err := get(s, "answer")
		fmt.Printf("the answer is %s\n", value)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: the answer is 42
}

// ANCHOR: update

// A transfer that is refused leaves nothing behind.
func ExampleFile_Update() {
	dir, remove := directory()
	defer remove()
	accounts, err := untorn.Open(filepath.Join(dir, "accounts"), &untorn.Options{Create: true, Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer accounts.Close()

	balance := func(from io.ReaderAt, account int64) int64 {
		var p [8]byte
		if _, err := from.ReadAt(p[:], account*8); err != nil {
			log.Fatal(err)
		}
		return int64(binary.LittleEndian.Uint64(p[:]))
	}
	add := func(tx *untorn.Tx, account, amount int64) error {
		var p [8]byte
		binary.LittleEndian.PutUint64(p[:], uint64(balance(tx, account)+amount))
		_, err := tx.WriteAt(p[:], account*8)
		return err
	}
	transfer := func(from, to, amount int64) error {
		return accounts.Update(func(tx *untorn.Tx) error {
			if err := add(tx, to, amount); err != nil {
				return err
			}
			if err := add(tx, from, -amount); err != nil {
				return err
			}
			if balance(tx, from) < 0 {
				return errors.New("not enough money")
			}
			return nil
		})
	}

	if err := accounts.Update(func(tx *untorn.Tx) error { return add(tx, 1, 100) }); err != nil {
		log.Fatal(err)
	}
	fmt.Println(transfer(1, 90_000, 30))
	fmt.Println(transfer(1, 90_000, 300))
	err = accounts.View(func(s *untorn.Snapshot) error {
		fmt.Println(balance(s, 1), balance(s, 90_000))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// <nil>
	// not enough money
	// 70 30
}

// ANCHOR_END: update

// Counters in memory.
func ExampleMap() {
	dir, remove := directory()
	defer remove()
	counts, err := untorn.OpenMap(filepath.Join(dir, "counts"), 1<<20, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer counts.Close()

	memory := counts.Bytes()
	memory[0]++
	memory[1<<20-1] += 2
	if err := counts.Commit(); err != nil { // both, or neither
		log.Fatal(err)
	}

	memory[0] = 100
	if err := counts.Rollback(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(memory[0], memory[1<<20-1])
	// Output: 1 2
}
