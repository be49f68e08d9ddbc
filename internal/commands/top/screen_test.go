package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pty makes a terminal: what a user sees and types, and what a program reads and writes.
func pty(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs a terminal: %v", err)
	}
	t.Cleanup(func() { _ = user.Close() }) // a test closes it, too
	fd := int(user.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err = errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0), unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})); err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs a terminal: %v", err)
	}
	t.Cleanup(func() { _ = program.Close() }) // nothing is lost
	return user, program
}

// TestRun types at a screen, and wants the terminal back as it was.
func TestRun(t *testing.T) {
	for what, end := range map[string]func(user *os.File, cancel func()) error{
		"q":       func(user *os.File, _ func()) error { _, err := user.WriteString("jsq"); return err },
		"the end": func(_ *os.File, cancel func()) error { cancel(); return nil },
	} {
		user, program := pty(t)
		before, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var seen strings.Builder
		go func() { // ends with the terminal
			buffer := make([]byte, 4096)
			for {
				n, err := user.Read(buffer)
				if err != nil {
					return
				}
				mu.Lock()
				seen.Write(buffer[:n])
				mu.Unlock()
			}
		}()
		shows := func(text string) bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(seen.String(), text)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		over := make(chan error, 1)
		go func() {
			over <- (&Screen{Sampler: NewSampler("/bin/false", "status", time.Second), Interval: time.Hour, By: ByName}).Run(ctx, program, program)
		}()
		wait := func(text string) {
			t.Helper()
			for began := time.Now(); !shows(text); time.Sleep(10 * time.Millisecond) {
				if time.Since(began) > time.Minute {
					t.Fatalf("%s: no %q is on the screen", what, text)
				}
			}
		}
		wait(enter)
		wait("hbmfs top")
		if err := end(user, cancel); err != nil {
			t.Fatal(err)
		}
		if err := <-over; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
		wait(leave)
		after, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
		if err != nil || *after != *before {
			t.Errorf("%s: the terminal is not as it was: %v", what, err)
		}
	}
}

// Without a mount table it ends, and a sample is due after each sample.
func TestRunSamples(t *testing.T) {
	user, program := pty(t)
	go func() { // ends with the terminal
		buffer := make([]byte, 4096)
		for {
			if _, err := user.Read(buffer); err != nil {
				return
			}
		}
	}()
	broken, asked := errors.New("read the mount table: no"), 0
	s := &Screen{Interval: time.Millisecond, By: ByName, sample: func(context.Context) ([]Sample, error) {
		if asked++; asked < 4 {
			return nil, nil
		}
		return nil, broken
	}}
	if err := s.Run(t.Context(), program, program); !errors.Is(err, broken) || asked != 4 {
		t.Errorf("after %d samples: %v", asked, err)
	}
}
