package cache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// seen is what a Watch has told.
type seen struct {
	mu    sync.Mutex // guards the fields below
	kinds map[string]ChangeKind
	since map[string]int64
	turns int
}

func (s *seen) found(list []Change, _ int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns++
	for _, c := range list {
		if s.kinds[c.Object.Name] != 0 {
			panic("a change was told twice: " + c.Object.Name)
		}
		s.kinds[c.Object.Name], s.since[c.Object.Name] = c.Kind, c.Since
	}
}

func (s *seen) of(name string) ChangeKind {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kinds[name]
}

// within waits for a condition.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// watchedDir makes files of 100 bytes, and watches them: q is nil for a sweep alone.
func watchedDir(t *testing.T, q *queue, every time.Duration, names ...string) (dir string, s *seen, w *Watch) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, make([]byte, 100), 0o600), os.Chtimes(path, time.Time{}, time.Unix(1000, 0))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(names[0], filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	l, err := d.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	s = &seen{kinds: map[string]ChangeKind{}, since: map[string]int64{}}
	if w, err = d.watchBy(q, every, 0, s.found); err != nil {
		t.Fatal(err)
	}
	w.Add(l.Objects...)
	t.Cleanup(func() {
		w.Close() // again, in one test
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	within(t, "the Watch has looked at its objects", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.turns > 2
	})
	return dir, s, w
}

// changesOf are what may become of a file.
func changesOf(t *testing.T) map[ChangeKind]func(name string) error {
	t.Helper()
	write := func(name string, b []byte) error {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(b)
		return errors.Join(err, f.Close())
	}
	return map[ChangeKind]func(name string) error{
		Cut:       func(name string) error { return os.Truncate(name, 99) },
		Rewritten: func(name string) error { return write(name, make([]byte, 100)) },
		Replaced: func(name string) error {
			return errors.Join(os.WriteFile(name+"~", make([]byte, 100), 0o600), os.Rename(name+"~", name))
		},
		Removed: os.Remove,
	}
}

// TestWatchFindsChanges has files changed in each way, by notification and by a sweep. Others, and other rights of a file, are no changes.
func TestWatchFindsChanges(t *testing.T) {
	names := []string{"target", "1", "a/2", "a/b/3", "4", "whole"}
	for name, how := range map[string]struct {
		queue *queue
		every time.Duration
	}{"notified": {newQueue(), time.Hour}, "swept": {nil, 200 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			dir, s, _ := watchedDir(t, how.queue, how.every, names...)
			for kind, change := range changesOf(t) {
				of := names[kind]
				if err := change(filepath.Join(dir, of)); err != nil {
					t.Fatal(err)
				}
				done := Monotonic() // a turn may end before the change begins
				within(t, of+" is told", func() bool { return s.of(of) != 0 })
				if s.of(of) != kind || s.since[of] > done {
					t.Errorf("%s is told as %d since %d, want %d since %d at the latest", of, s.of(of), s.since[of], kind, done)
				}
			}
			if err := os.Chmod(filepath.Join(dir, "whole"), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := os.ReadFile(filepath.Join(dir, "whole")); err != nil {
				t.Fatal(err)
			}
			before := s.turnsNow()
			within(t, "the Watch goes on", func() bool { return s.turnsNow() > before+5 })
			if s.of("whole") != 0 || s.of("target") != 0 || s.of("link") != 0 {
				t.Errorf("told of files that are as they were: %v", s.kinds)
			}
		})
	}
}

func (s *seen) turnsNow() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turns
}

// TestWatchFindsWhatIsAbove has a directory renamed in which files lie, and the target of a link cut.
func TestWatchFindsWhatIsAbove(t *testing.T) {
	dir, s, _ := watchedDir(t, newQueue(), 300*time.Millisecond, "target", "a/b/1", "c/2")
	if err := errors.Join(os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "d")), os.Truncate(filepath.Join(dir, "target"), 5)); err != nil {
		t.Fatal(err)
	}
	within(t, "all are told", func() bool { return s.of("a/b/1") != 0 && s.of("target") != 0 && s.of("link") != 0 })
	if s.of("a/b/1") != Removed || s.of("target") != Cut || s.of("link") != Cut || s.of("c/2") != 0 {
		t.Errorf("told of %v", s.kinds)
	}
}

// TestWatchOfABusyDirectory makes more events than the kernel keeps, of files that nobody watches. The Watch keeps nothing of them, and finds the change
// among them, with or without its event.
func TestWatchOfABusyDirectory(t *testing.T) {
	dir, s, w := watchedDir(t, newQueue(), time.Hour, "target", "1")
	var others []*os.File
	for i := range 2 { // in turn, since the kernel makes one of events that are the same
		f, err := os.Create(filepath.Join(dir, fmt.Sprint("other", i)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }() // its events are what counts
		others = append(others, f)
	}
	for i := range 200_000 {
		if _, err := others[i%2].WriteAt([]byte{1}, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, "1"), 7); err != nil {
		t.Fatal(err)
	}
	within(t, "the change is told", func() bool { return s.of("1") == Cut })
	w.Close()
	if len(w.entries) != 3 || cap(w.due) > 64 {
		t.Errorf("%d objects, room for %d that are due", len(w.entries), cap(w.due))
	}
}
