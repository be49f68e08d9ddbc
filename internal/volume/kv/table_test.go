package kv

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// FuzzTable compares the table with a map. Few hashes have many collide, and clusters wrap around the end.
func FuzzTable(f *testing.F) {
	f.Add([]byte{1, 2, 3, 129, 2, 130, 1})
	f.Fuzz(func(t *testing.T, ops []byte) {
		var table table
		defer table.close()
		if err := table.fit(100); err != nil {
			t.Fatal(err)
		}
		there := map[uint32]uint32{} // slot to hash
		for i := 0; i+1 < len(ops); i += 2 {
			n := uint32(ops[i] % 100)
			hash := uint32(ops[i+1]%8) + 120 // of 128 cells
			if old, ok := there[n]; ok {
				table.remove(old, n)
				delete(there, n)
			} else {
				table.insert(hash, n)
				there[n] = hash
			}
			for n := range uint32(100) {
				hash, want := there[n]
				if _, got := table.find(hash, func(k uint32) bool { return k == n }); got != want {
					t.Fatalf("slot %d with hash %d: found %v, want %v", n, hash, got, want)
				}
			}
			if table.used != len(there) {
				t.Fatalf("%d are counted, want %d", table.used, len(there))
			}
		}
	})
}

func TestTheTableGrows(t *testing.T) {
	var table table
	defer table.close()
	r := rand.New(rand.NewPCG(1, 2))
	hashes := make([]uint32, 10_000)
	for n := range hashes {
		if err := table.fit(n + 1); err != nil {
			t.Fatal(err)
		}
		hashes[n] = r.Uint32() % 5000
		table.insert(hashes[n], uint32(n))
	}
	for n, hash := range hashes {
		if _, ok := table.find(hash, func(k uint32) bool { return k == uint32(n) }); !ok {
			t.Fatalf("slot %d is lost", n)
		}
	}
}

// FuzzRecord feeds any bytes to the parser. What is taken for a record is written back as the same bytes.
func FuzzRecord(f *testing.F) {
	var sample [recordSize]byte
	r := record{[]byte("key"), 7, 8, true, 9}
	r.encode(sample[:], 1, 2)
	f.Add(sample[:], true)
	f.Add(make([]byte, recordSize), false)
	f.Fuzz(func(t *testing.T, p []byte, mend bool) {
		if mend && len(p) >= recordSize { // or nothing but the sample would get past the checksum
			binary.LittleEndian.PutUint32(p, seal(1, 2, p))
		}
		r, ok := parseRecord(p, 1, 2, 100)
		if !ok {
			return
		}
		var back [recordSize]byte
		if r.encode(back[:], 1, 2); string(back[:]) != string(p[:recordSize]) || r.length > 100 || len(r.key) == 0 {
			t.Errorf("%x came back as %x", p, back)
		}
		for _, other := range [][2]uint64{{1, 3}, {2, 2}} {
			if _, ok := parseRecord(p, other[0], uint32(other[1]), 100); ok {
				t.Error("the record of another slot, or namespace, is taken")
			}
		}
	})
}

func TestRecordsAndMetasThatAreCutAreRefused(t *testing.T) {
	var p [recordSize]byte
	r := record{[]byte("key"), 7, 8, true, 9}
	r.encode(p[:], 1, 2)
	for n := range recordSize {
		cut := append([]byte(nil), p[:n]...)
		cut = append(cut, make([]byte, recordSize-n)...)
		if _, ok := parseRecord(cut, 1, 2, 100); ok && string(cut) != string(p[:]) {
			t.Errorf("%d bytes of a record are taken", n)
		}
	}
	m := meta{Version: metaVersion, ID: 1, Block: 5, Slot: 4096, Disk: 3, Memory: 2, Boot: "b", Ended: true}
	text := m.encode()
	if got, ok := parseMeta(text); !ok || got != m {
		t.Errorf("%+v, %v", got, ok)
	}
	for n := range len(text) - 1 {
		if _, ok := parseMeta(text[:n]); ok {
			t.Errorf("%d bytes of a meta are taken", n)
		}
	}
}

// FuzzMeta: what is taken has sizes that can be computed with.
func FuzzMeta(f *testing.F) {
	m := meta{Version: metaVersion, ID: 1, Block: 5, Slot: 4096, Disk: 3, Memory: 2}
	f.Add(m.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, ok := parseMeta(b); ok && (m.Block <= 0 || m.Slot < m.Block || m.Slot*m.Disk/m.Disk != m.Slot) {
			t.Errorf("%+v", m)
		}
	})
}
