package kv_test

import (
	"testing"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// memoryOf is what a namespace has allocated of the memory tier.
func (v *volume) memoryOf(t testing.TB, name string) uint64 {
	t.Helper()
	for _, n := range v.status(t).KV.Namespaces {
		if n.Name == name {
			return n.Memory.Allocated
		}
	}
	return 0
}

// fillMemory stores blocks until a namespace has so much of the memory tier.
func (v *volume) fillMemory(t testing.TB, e *engine, name string, want uint64) {
	t.Helper()
	first := 0
	if !blackbox.Within(patience, func() bool {
		_, _, err := e.put(t.Context(), keysOf(first, 50)...)
		must(t, err)
		first += 50
		return v.memoryOf(t, name) >= want
	}) {
		t.Fatalf("%s has %d bytes of memory, want %d: %+v", name, v.memoryOf(t, name), want, v.status(t).KV)
	}
}

// TestMemoryGoesToWhoNeedsIt: a namespace keeps its memory while an engine has it open, over a clear and a kill of the daemon. Once none has, another one
// gets it at once, and who comes back is told that it went, by any daemon.
func TestMemoryGoesToWhoNeedsIt(t *testing.T) {
	const want = 6 << 20
	v := mount(t, "--size", "64MiB", "--memory", "8MiB")
	e := v.connect(t, "first", 64<<10)
	v.fillMemory(t, e, "first", want)
	must(t, e.Clear(t.Context()))
	cuts := e.Tiers[0].Cuts
	v.kill(t)
	again := v.attach(t, e, "first")
	if now := again.Tiers[0].Cuts; now != cuts || v.memoryOf(t, "first") < want {
		t.Errorf("after a clear and a kill the first has %d bytes, cut %d times, before %d", v.memoryOf(t, "first"), now, cuts)
	}
	v.fillMemory(t, again, "first", want)
	must(t, again.close())
	other := v.connect(t, "second", 32<<10)
	v.fillMemory(t, other, "second", want)
	again = v.connect(t, "first", 64<<10)
	gone := again.Tiers[0].Cuts
	if gone <= cuts {
		t.Errorf("regions went, and the count is %d as before", gone)
	}
	v.kill(t)
	again = v.attach(t, again, "first")
	if now := again.Tiers[0].Cuts; now != gone {
		t.Errorf("the next daemon counts %d cuts, the one before %d", now, gone)
	}
}

// TestKVClearGivesMemoryBack: an operator clears a namespace that no engine has open, and the machine has its memory.
func TestKVClearGivesMemoryBack(t *testing.T) {
	v := mount(t, "--size", "64MiB", "--memory", "8MiB")
	e := v.connect(t, "model", 64<<10)
	v.fillMemory(t, e, "model", 6<<20)
	must(t, e.close())
	out, err := suite.Command(t.Context(), "kv", "clear", v.point, "model").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var n status.Namespace
	if !blackbox.Within(patience, func() bool { n = v.status(t).KV.Namespaces[0]; return n.Memory.Allocated+n.Disk.Allocated == 0 }) {
		t.Errorf("%+v", n)
	}
}
