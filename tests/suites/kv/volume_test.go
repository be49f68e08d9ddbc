package kv_test

import (
	"os"
	"slices"
	"testing"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// TestBothTiersSurviveAKill kills the daemon: with a keeper all blocks are there, pins and reservations too.
func TestBothTiersSurviveAKill(t *testing.T) {
	v := mount(t, "--size", "64MiB", "--memory", "8MiB")
	e := v.connect(t, "model", 64<<10)
	keys := keysOf(0, 300) // 19 MB
	tiers := map[control.KVSurvival]int{}
	for part := range slices.Chunk(keys, 50) {
		stored, survives, err := e.put(t.Context(), part...)
		must(t, err)
		if len(stored) != len(part) {
			t.Fatalf("%d of %d are stored", len(stored), len(part))
		}
		for _, s := range survives {
			tiers[s]++
		}
	}
	if tiers[control.KVHeld] == 0 || tiers[control.KVOnDisk] == 0 || tiers[control.KVNothing] > 0 {
		t.Errorf("%v", tiers)
	}
	pinned, err := e.Lookup(t.Context(), [][]byte{[]byte(keys[7])}, true)
	must(t, err)
	reserved, err := e.Reserve(t.Context(), []control.KVBlock{{Key: []byte("half"), Length: 5}})
	must(t, err)
	v.kill(t)
	again := v.attach(t, e, "model")
	found, err := again.get(t.Context(), keys...)
	must(t, err)
	if len(found) != len(keys) {
		t.Errorf("%d of %d blocks survive", len(found), len(keys))
	}
	if done, err := again.Release(t.Context(), 0, pinned[0].Token); err != nil || done[0].Errno != 0 {
		t.Errorf("the pin: %v, %v", done, err)
	}
	if done, err := again.Commit(t.Context(), []control.KVStored{{Token: reserved[0].Token, Flags: control.KVHasCRC}}); err != nil || done[0].Errno != 0 {
		t.Errorf("the reservation: %v, %v", done, err)
	}
	if s := v.status(t).KV; s.Holding != 0 || !s.MemoryHeld || s.Namespaces[0].Pins != 0 {
		t.Errorf("%+v", s)
	}
}

// TestOnlyTheDiskSurvivesWithoutAKeeper kills a daemon that nobody holds, and mounts again.
func TestOnlyTheDiskSurvivesWithoutAKeeper(t *testing.T) {
	v := mount(t, "--size", "64MiB", "--memory", "8MiB", "--no-keeper")
	e := v.connect(t, "model", 64<<10)
	keys := keysOf(0, 300)
	var disk []string
	for part := range slices.Chunk(keys, 50) {
		stored, survives, err := e.put(t.Context(), part...)
		must(t, err)
		for i, s := range survives {
			if s == control.KVOnDisk {
				disk = append(disk, stored[i])
			} else if s != control.KVNothing {
				t.Fatalf("%s survives %d", stored[i], s)
			}
		}
	}
	must(t, e.close())
	pid := v.status(t).PID
	must(t, blackbox.Stop(pid))
	process, err := os.FindProcess(pid)
	must(t, err)
	must(t, process.Kill())
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(pid) }) {
		t.Fatal("the daemon does not end")
	}
	v.mount(t)
	e = v.connect(t, "model", 64<<10)
	found, err := e.get(t.Context(), disk...)
	must(t, err)
	if len(found) != len(disk) || len(disk) == 0 {
		t.Errorf("%d of %d blocks of the disk survive", len(found), len(disk))
	}
	if notes := v.status(t).KV.Notes; len(notes) > 0 {
		t.Error(notes)
	}
}
