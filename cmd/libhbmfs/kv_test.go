package main

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/cufile/kv"
	"github.com/hbmfs/hbmfs/cufile/kv/kvtest"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

// TestRefusedRequestsKeepNoDescriptor puts blocks into a store that is open for reading. No eventfd is told, and none stays open.
func TestRefusedRequestsKeepNoDescriptor(t *testing.T) {
	dir := t.TempDir()
	daemon, err := kvtest.Start(kvtest.Options{Dir: dir, BlockBytes: 4096, Memory: 4})
	if err != nil {
		t.Fatal(err)
	}
	l := newLibrary()
	store, err := l.openKV(dir, "test", kv.Options{Device: cufile.HostDevice, Create: true, BlockBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	var eventfd [2]int // a pipe stands for it, since the eventfds of Go's runtime are not counted
	if err := unix.Pipe2(eventfd[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	left := leaks.Files(t)
	for range 100 {
		_, err := l.beginKV(store, eventfd[1], func(s *kv.Store, ended func()) (*kv.Request, error) { return s.Put(nil, nil, ended) })
		want(t, "put", err, codePermission)
	}
	if err := left(); err != nil {
		t.Error(err)
	}
	var told [8]byte
	if _, err := unix.Read(eventfd[0], told[:]); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the eventfd was told of a request that has not begun: %v", err)
	}
	want(t, "close", l.closeKV(store), codeOK)
	if err := errors.Join(unix.Close(eventfd[0]), unix.Close(eventfd[1]), daemon.Close()); err != nil {
		t.Error(err)
	}
}
