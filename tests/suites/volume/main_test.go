// Package volume_test tests the built hbmfs over real checkpoint volumes, as their users see them: plain programs that write drafts, the
// command line, and readers of what is published. What becomes of them when daemons die and disks fail is tested in the folder faults.
//
// HBMFS_BINARY names the binary to test; under the race detector the daemon is built with it. Volumes need root: passthrough does.
package volume_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// suite is what all tests share; TestMain makes it.
var suite *blackbox.Suite

func TestMain(m *testing.M) {
	if volumetest.ServeChild(map[string]func(args []string) error{
		"mkdir":         func(args []string) error { return os.Mkdir(args[0], 0o755) },
		"write":         func(args []string) error { return os.WriteFile(args[0], []byte(args[1]), 0o640) },
		"read":          func(args []string) error { _, err := os.ReadFile(args[0]); return err },
		"rename":        func(args []string) error { return os.Rename(args[0], args[1]) },
		"rmdir":         func(args []string) error { return os.Remove(args[0]) },
		"list":          func(args []string) error { _, err := os.ReadDir(args[0]); return err },
		"fill":          func(args []string) error { return fill(args[0]) },
		"ordinary":      func(args []string) error { return said(ordinary(args[0], args[1], args[2], args[3])) },
		"ordinary past": func(args []string) error { return ordinaryPast(args[0], args[1], args[2]) }, // HBMFS DIRECTORY POINT
		"begin":         func(args []string) error { return begin(args[0]) },                          // PATH
		"attach": func(args []string) error {
			_, err := control.AttachDraft(context.Background(), args[0], "test")
			return err
		},
		"changes": func(args []string) error { return noChange(args[0]) }, // PUBLISHED
	}) {
		return
	}
	os.Exit(blackbox.Main("volume", &suite, m.Run))
}

// said is an error by its words alone, which are printed instead of an errno in it.
func said(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.Error())
}

// begin begins a draft past FUSE and drops it. It prints why that failed before the errno.
func begin(path string) error {
	d, err := control.BeginDraft(context.Background(), path, 0, 1, "test")
	if err != nil {
		fmt.Println(err)
		return err
	}
	return d.Drop(context.Background())
}

// noChange tries to change what is published.
func noChange(published string) error {
	for _, c := range changes {
		if err := c.do(published); err == nil {
			return fmt.Errorf("%s was done", c.name)
		}
	}
	return nil
}

func mount(t testing.TB, flags ...string) *volumetest.Volume {
	t.Helper()
	return volumetest.Mount(t, suite, flags...)
}

func mountAt(t testing.TB, dir string, flags ...string) *volumetest.Volume {
	t.Helper()
	return volumetest.MountAt(t, suite, dir, flags...)
}

// run runs hbmfs to its end.
func run(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	r := suite.Run(t, args...)
	return r.Code, r.Stdout, r.Stderr
}
