package device

import (
	"math"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

func TestHost(t *testing.T) {
	d, err := Open(Host, driver.Libraries{CUDA: "there-is-none.so"})
	if err != nil {
		t.Fatal(err)
	}
	stream, ran := uintptr(1), false
	event, err := d.Mark(&stream, nil)
	if event != 0 || err != nil {
		t.Errorf("a stream's mark is %d, %v", event, err)
	}
	d.Unmark(event)
	if err := d.Within(func() error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("within: %v, it ran: %v", err, ran)
	}
	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestMemoryThatCannotBe(t *testing.T) {
	var d Device
	for name, c := range map[string]struct {
		m  Memory
		ok bool
	}{
		"some":                {Memory{4096, 100}, true},
		"none":                {Memory{4096, 0}, true},
		"up to the last byte": {Memory{math.MaxInt64 - 100, 100}, true},
		"no address":          {Memory{0, 100}, false},
		"a negative length":   {Memory{4096, -1}, false},
		"beyond all":          {Memory{math.MaxInt64 - 99, 100}, false},
		"the last address":    {Memory{^uintptr(0), 1}, false},
	} {
		if err := d.Has(c.m, nil); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBytes(t *testing.T) {
	var d Device
	host, hbm := Bytes{Host: []byte("abcdef")}, Bytes{HBM: 4096, N: 6}
	for name, b := range map[string]Bytes{"host": host, "HBM": hbm} {
		if b.Size() != 6 {
			t.Errorf("%s: %d bytes, want 6", name, b.Size())
		}
		if part := b.Part(2, 3); part.Size() != 3 {
			t.Errorf("%s: a part of %d bytes, want 3", name, part.Size())
		}
	}
	if part := host.Part(2, 3); string(part.Host) != "cde" {
		t.Errorf("%q, want cde", part.Host)
	}
	if part := hbm.Part(2, 3); part.HBM != 4098 {
		t.Errorf("it begins at %d, want 4098", part.HBM)
	}
	if err := d.HasBytes(&host, nil); err != nil {
		t.Error(err)
	}
	if d.HasBytes(&hbm, nil) == nil || d.HasBytes(&Bytes{N: -1}, nil) == nil {
		t.Error("the host is said to have memory of a GPU")
	}
	if b := OfHost(0, 0); b.Host != nil || b.Size() != 0 {
		t.Errorf("%v, want nothing", b)
	}
}
