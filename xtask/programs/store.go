// A store of numbered keys in a bbolt file.
package main

import (
	"fmt"
	"hash/crc32"
	"os"
	"strconv"

	bolt "go.etcd.io/bbolt"
)

var bucket = []byte("steps")

func key(n int) []byte   { return []byte(fmt.Sprintf("%08d", n)) }
func value(n int) []byte { return []byte(fmt.Sprintf("value %d of %0*d", n, 1+n%700, n)) }

func must(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func put(db *bolt.DB, n int) {
	must(db.Update(func(tx *bolt.Tx) error {
		steps, err := tx.CreateBucketIfNotExists(bucket)
		if err != nil {
			return err
		}
		return steps.Put(key(n), value(n))
	}))
}

func main() {
	verb, name := os.Args[1], os.Args[2]
	number := 0
	if len(os.Args) > 3 {
		number, _ = strconv.Atoi(os.Args[3])
	}
	db, err := bolt.Open(name, 0o644, nil)
	must(err)
	switch verb {
	case "fill":
		for n := number - 299; n <= number; n++ {
			put(db, n)
		}
	case "delete":
		must(db.Update(func(tx *bolt.Tx) error {
			for n := 1; n <= number; n++ {
				if err := tx.Bucket(bucket).Delete(key(n)); err != nil {
					return err
				}
			}
			return nil
		}))
	case "list":
		count, sum := 0, crc32.NewIEEE()
		must(db.View(func(tx *bolt.Tx) error {
			for err := range tx.Check() {
				return err
			}
			steps := tx.Bucket(bucket)
			if steps == nil {
				return nil
			}
			return steps.ForEach(func(k, v []byte) error {
				count++
				sum.Write(k)
				sum.Write(v)
				return nil
			})
		}))
		fmt.Printf("%d keys, %08x\n", count, sum.Sum32())
	case "compact":
		to, err := bolt.Open(os.Args[3], 0o644, nil)
		must(err)
		must(bolt.Compact(to, db, 65536))
		must(to.Close())
	case "check":
		must(db.View(func(tx *bolt.Tx) error {
			for err := range tx.Check() {
				return err
			}
			return nil
		}))
		fmt.Println("whole")
	}
	must(db.Close())
}
