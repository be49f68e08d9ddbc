// Package leaks tells a test which goroutines and which files it left behind.
//
// On a busy machine a goroutine that is about to end needs a while until it has a CPU. So each check here repeats for
// [patience], which only a leak outlasts.
package leaks

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const patience = 30 * time.Second

// Main is all of a TestMain, or its end. It panics where goroutines outlive all tests.
func Main(m *testing.M) {
	if m.Run() != 0 {
		return // the caller of TestMain exits with it
	}
	if err := Goroutines(); err != nil {
		panic(err)
	}
}

// Goroutines returns an error with the stacks of goroutines that are left, or nil.
func Goroutines(ignored ...goleak.Option) error {
	return within(func() error { return goleak.Find(ignored...) }) // Find itself takes 0.4 s for an error
}

// Files notes which files this process has open. The function that it returns gives an error with the names of files that
// were opened since and are still open, or nil.
func Files(t testing.TB) (left func() error) {
	t.Helper()
	before, err := openFiles()
	if err != nil {
		t.Fatal(err)
	}
	return func() error {
		return within(func() error {
			now, err := openFiles()
			if err != nil {
				return err
			}
			var more []string
			for name, n := range now {
				if n > before[name] {
					more = append(more, fmt.Sprintf("%d of %s", n-before[name], name))
				}
			}
			if len(more) == 0 {
				return nil
			}
			runtime.GC() // finalizers close files that the test has only dropped
			time.Sleep(10 * time.Millisecond)
			slices.Sort(more)
			return fmt.Errorf("files are left open: %s", strings.Join(more, ", "))
		})
	}
}

// openFiles counts the files that this process has open, by name.
func openFiles() (map[string]int, error) {
	const dir = "/proc/self/fd/"
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the open files of this process: %w", err)
	}
	files := map[string]int{}
	for _, entry := range list {
		name, err := os.Readlink(dir + entry.Name())
		name = strings.TrimSuffix(name, " (deleted)")
		// The list's own descriptor is closed by now. Go opens the descriptors of its poller once, at any time.
		if err == nil && name != "anon_inode:[eventpoll]" && name != "anon_inode:[eventfd]" {
			files[name]++
		}
	}
	return files, nil
}

// within repeats a check until it finds nothing, for a limited time.
func within(check func() error) error {
	for end := time.Now().Add(patience); ; {
		if err := check(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
