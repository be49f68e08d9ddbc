package faults_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// TestPastWritersAndDaemonsAreKilled: whoever is killed at whatever step, a checkpoint is there as a whole, or nothing of it.
func TestPastWritersAndDaemonsAreKilled(t *testing.T) {
	v := mount(t)
	for i, step := range volumetest.PastSteps() {
		t.Run(step, func(t *testing.T) {
			name := fmt.Sprintf("daemon_%d", i)
			w := volumetest.StartPast(t, v.Path(name), step)
			v.Kill(t)
			blackbox.Must(t, w.In.Close())
			rest, err := io.ReadAll(w.Out)
			if blackbox.Must(t, err); w.Wait() != nil || string(rest) != "ok\n" {
				t.Errorf("the writer goes on after the daemon: %q", rest)
			}
			volumetest.PastIsWhole(t, v, name)
			for what, kill := range map[string]func(w *volumetest.PastWriter){
				"writer":         func(w *volumetest.PastWriter) { blackbox.Must(t, w.Process.Kill()) },
				"writer, daemon": func(w *volumetest.PastWriter) { blackbox.Must(t, w.Process.Kill()); v.Kill(t) },
				"daemon, writer": func(w *volumetest.PastWriter) { v.Kill(t); blackbox.Must(t, w.Process.Kill()) },
				"both at a moment": func(w *volumetest.PastWriter) {
					blackbox.Must(t, errors.Join(syscall.Kill(v.PID(t), syscall.SIGKILL), w.Process.Kill()))
				},
			} {
				name := fmt.Sprintf("%s_%d", strings.Map(func(r rune) rune { return max(r, 'A') }, what), i)
				w := volumetest.StartPast(t, v.Path(name), step)
				kill(w)
				_ = w.Wait() // it was killed
				if step == "published" {
					volumetest.PastIsWhole(t, v, name)
					continue
				}
				if !blackbox.Within(volumetest.Patience, func() bool {
					_, err := os.Lstat(filepath.Join(v.Dir, "."+name+".hbmfs.tmp"))
					_, lockErr := os.Lstat(filepath.Join(v.Dir, "."+name+".hbmfs.lock"))
					return errors.Is(err, os.ErrNotExist) && errors.Is(lockErr, os.ErrNotExist)
				}) {
					t.Errorf("%s: %q is left", what, volumetest.Listed(t, v.Dir))
				}
				if _, err := os.Stat(v.Path(name)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s: it is there: %v", what, err)
				}
			}
		})
	}
}
