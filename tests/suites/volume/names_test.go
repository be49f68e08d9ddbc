package volume_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// TestNamesAreRefusedWhenTheyAreMade: publishing has nothing to complain of then.
func TestNamesAreRefusedWhenTheyAreMade(t *testing.T) {
	v := mount(t)
	dir := v.Draft(t, "step", map[string]string{"file": "bytes"})
	for _, name := range []string{"new\nline", "bell\a", "\x1b[31m", "\xff\xfe", "caf\xe9", "del\x7f"} {
		path := dir + "/" + name
		volumetest.Want(t, "mkdir", os.Mkdir(path, 0o755), unix.EINVAL)
		volumetest.Want(t, "create", os.WriteFile(path, nil, 0o644), unix.EINVAL)
		volumetest.Want(t, "mknod", unix.Mknod(path, unix.S_IFREG|0o644, 0), unix.EINVAL)
		volumetest.Want(t, "rename", os.Rename(dir+"/file", path), unix.EINVAL)
	}
	v.Said(t, "control characters")
	deep := dir + strings.Repeat("/d", 64)
	blackbox.Must(t, os.MkdirAll(deep, 0o755))
	blackbox.Must(t, os.WriteFile(deep+"/file", []byte("bytes"), 0o644))
	volumetest.Want(t, "a 65th directory", os.Mkdir(deep+"/e", 0o755), unix.EINVAL)
	v.Said(t, "65 deep")
	blackbox.Must(t, os.MkdirAll(dir+"/two/levels", 0o755))
	blackbox.Must(t, os.Mkdir(dir+"/one", 0o755))
	above := filepath.Dir(deep)
	volumetest.Want(t, "a tree that gets too deep", os.Rename(dir+"/two", above+"/two"), unix.EINVAL)
	blackbox.Must(t, os.Rename(dir+"/one", above+"/one"))
	volumetest.Want(t, "an exchange that gets too deep", unix.Renameat2(unix.AT_FDCWD, above+"/one", unix.AT_FDCWD, dir+"/two", unix.RENAME_EXCHANGE), unix.EINVAL)
	blackbox.Must(t, v.Publish("step"))
}

// TestOthersRemoveTheTree: shutil.rmtree by several processes at once raises nothing, as on the disk.
func TestOthersRemoveTheTree(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	v := mount(t)
	dir := v.Draft(t, "step", nil)
	const program = `
import shutil, sys
for line in sys.stdin:
    shutil.rmtree(line[:-1], ignore_errors=True)
    print("done", flush=True)
`
	const subs, processes = 20, 2
	var orders []io.Writer
	var answers []*bufio.Scanner
	for range processes {
		cmd := exec.CommandContext(t.Context(), python, "-c", program)
		said := &strings.Builder{}
		cmd.Stderr = said
		order, err := cmd.StdinPipe()
		blackbox.Must(t, err)
		answer, err := cmd.StdoutPipe()
		blackbox.Must(t, err)
		blackbox.Must(t, cmd.Start())
		orders, answers = append(orders, order), append(answers, bufio.NewScanner(answer))
		defer func() {
			blackbox.Must(t, order.Close())
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, said)
			}
		}()
	}
	for i := range blackbox.Rounds(5, 20) {
		tree := filepath.Join(dir, strconv.Itoa(i))
		for k := range subs {
			blackbox.Must(t, os.MkdirAll(filepath.Join(tree, strconv.Itoa(k), "sub"), 0o755))
		}
		for _, to := range orders {
			_, err := fmt.Fprintln(to, tree)
			blackbox.Must(t, err)
		}
		for _, from := range answers {
			if !from.Scan() {
				return // it says why
			}
		}
		if _, err := os.Lstat(tree); !os.IsNotExist(err) {
			t.Errorf("%s stays: %v", tree, err)
		}
	}
}
