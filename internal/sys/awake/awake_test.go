package awake

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func (p *Processors) held() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fd >= 0
}

// await waits with patience: the machine may be busy.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come about within a minute", what)
		}
	}
}

// processors are those of a device that is a plain file.
func processors(t *testing.T) (p *Processors, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "cpu_dma_latency")
	err := os.WriteFile(path, nil, 0o600)
	if err == nil {
		p, err = at(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p, path
}

func TestProcessorsAreAwakeWhileMuchIsUsed(t *testing.T) {
	p, path := processors(t)
	if wish, err := os.ReadFile(path); err != nil || string(wish) != "\x00\x00\x00\x00" {
		t.Errorf("the device got %q (%v), want a 0 of 32 bits", wish, err)
	}
	asleep := func() bool { return !p.held() }
	await(t, "sleep without a use", asleep)
	for range burst - 1 {
		p.Used()
	}
	if p.held() {
		t.Error("processors are awake after a few uses")
	}
	for range 2 {
		await(t, "wakefulness", func() bool {
			for range 2 * burst {
				p.Used()
			}
			return p.held()
		})
		await(t, "sleep after the last use", asleep)
	}
}

func TestUsesThatAreRareWakeNobody(t *testing.T) {
	p, _ := processors(t)
	await(t, "sleep without a use", func() bool { return !p.held() })
	now := time.Now()
	for range 10 {
		now = now.Add(linger)
		p.used(now)
	}
	if p.held() {
		t.Errorf("%d uses in each %v wake processors", burst, linger)
	}
}

func TestProcessorsOfNobody(t *testing.T) {
	if _, err := at(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the device: %v, want %v", err, fs.ErrNotExist)
	}
}
