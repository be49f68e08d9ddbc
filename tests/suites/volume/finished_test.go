package volume_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// published tells whether a checkpoint is there.
func published(v *volumetest.Volume, name string) bool {
	_, err := os.Stat(v.Path(name, ".hbmfs-manifest.json"))
	return err == nil
}

// isPublished waits for a checkpoint.
func isPublished(t *testing.T, v *volumetest.Volume, name string) {
	t.Helper()
	if !blackbox.Within(volumetest.Patience, func() bool { return published(v, name) }) {
		t.Errorf("%s is not published: %q", name, v.State(t).Checkpoints.Refused)
	}
}

// saver is a process that saves as torch's DCP does, writes one more file when it is told to, and lives on.
type saver struct {
	cmd *exec.Cmd
	end func(t *testing.T)
}

// save starts a saver. It has written .metadata when save returns.
func save(t *testing.T, v *volumetest.Volume, name string) *saver {
	t.Helper()
	script := `set -e; mkdir "$1"; echo tensors >"$1/__0_0.distcp"; echo where >"$1/.metadata.tmp"; mv "$1/.metadata.tmp" "$1/.metadata"; echo saved; read word; exec sleep 1000`
	cmd := exec.Command("sh", "-c", script, "sh", v.Path(name))
	in, err := cmd.StdinPipe()
	blackbox.Must(t, err)
	out, err := cmd.StdoutPipe()
	blackbox.Must(t, err)
	blackbox.Must(t, cmd.Start())
	line := make([]byte, 6)
	if _, err := out.Read(line); err != nil || string(line) != "saved\n" {
		t.Fatalf("%q, %v", line, err)
	}
	ended := false
	s := &saver{cmd, func(t *testing.T) {
		if !ended {
			ended = true
			blackbox.Must(t, errors.Join(cmd.Process.Kill(), in.Close()))
			_ = cmd.Wait() // by the signal
		}
	}}
	t.Cleanup(func() { s.end(t) })
	return s
}

// TestFrameworksFinish: what a framework says decides when a draft is published, and a file that it writes afterwards is not refused.
func TestFrameworksFinish(t *testing.T) {
	v := mount(t)

	t.Run("the last writer ends", func(t *testing.T) {
		s := save(t, v, "dcp")
		blackbox.Must(t, os.WriteFile(v.Path("dcp", "config.json"), []byte("{}"), 0o644)) // by this process, which lives
		other := save(t, v, "alone")
		if s.end(t); published(v, "dcp") {
			t.Error("it is published while a writer lives")
		}
		other.end(t)
		isPublished(t, v, "alone")
		if published(v, "dcp") {
			t.Error("it is published while a writer lives")
		}
	})
	t.Run("after another daemon", func(t *testing.T) {
		s := save(t, v, "replaced")
		v.Kill(t)
		if published(v, "replaced") {
			t.Error("it is published while a writer lives")
		}
		s.end(t)
		isPublished(t, v, "replaced")
		s = save(t, v, "between")
		v.KillSlowly(t, func() { s.end(t) })
		isPublished(t, v, "between")
	})
	t.Run("it saves once more", func(t *testing.T) {
		s := save(t, v, "twice")
		out, err := exec.Command("sh", "-c", `echo new >"$1/__0_0.distcp"`, "sh", v.Path("twice")).CombinedOutput()
		if err != nil {
			t.Fatal(err, string(out))
		}
		s.end(t)
		save(t, v, "later").end(t)
		isPublished(t, v, "later")
		if published(v, "twice") {
			t.Error("half of a second save is published")
		}
	})
	t.Run("Megatron's tracker", func(t *testing.T) {
		s := save(t, v, "iter_0000100")
		s.end(t)
		save(t, v, "next").end(t)
		isPublished(t, v, "next")
		if published(v, "iter_0000100") {
			t.Error("Megatron's .metadata has published its checkpoint")
		}
		blackbox.Must(t, os.WriteFile(v.Path("iter_0000100", "metadata.json"), []byte("{}"), 0o644))
		blackbox.Must(t, os.WriteFile(v.Path("latest_checkpointed_iteration.txt"), []byte("100"), 0o644))
		if !published(v, "iter_0000100") {
			t.Error("Megatron's tracker has not published its checkpoint")
		}
		v.Draft(t, "unclosed", nil)
		blackbox.Must(t, os.Mkdir(v.Path("iter_0000200"), 0o755))
		f, err := os.Create(v.Path("iter_0000200", "common.pt"))
		blackbox.Must(t, err)
		volumetest.Want(t, "the tracker, while a file is open", os.WriteFile(v.Path("latest_checkpointed_iteration.txt"), []byte("200"), 0o644), unix.EBUSY)
		blackbox.Must(t, f.Close())
		blackbox.Must(t, os.WriteFile(v.Path("latest_checkpointed_iteration.txt"), []byte("200"), 0o644))
		if !published(v, "iter_0000200") {
			t.Error("Megatron's tracker has not published its checkpoint")
		}
	})
	t.Run("DeepSpeed's latest", func(t *testing.T) {
		for step := range 3 {
			name := fmt.Sprintf("global_step%d", step)
			blackbox.Must(t, os.Mkdir(v.Path(name), 0o755))
			if step > 0 && !published(v, fmt.Sprintf("global_step%d", step-1)) {
				t.Error("what latest named is not published when the next one begins")
			}
			blackbox.Must(t, os.WriteFile(v.Path(name, "rank0.pt"), []byte("0"), 0o644))
			blackbox.Must(t, os.WriteFile(v.Path("latest"), []byte(name), 0o644))
			blackbox.Must(t, os.WriteFile(v.Path(name, "rank1.pt"), []byte("1"), 0o644)) // of a rank that is later than rank 0
			if published(v, name) {
				t.Error("latest has published it, although other ranks may still write")
			}
		}
	})
	t.Run("the mount ends", func(t *testing.T) {
		save(t, v, "last")
		v.Draft(t, "half", map[string]string{"file": "bytes"})
		dir := v.Dir
		v.End(t)
		for name, is := range map[string]bool{"last": true, "global_step2": true, "half": false, "dcp": true, "twice": false} {
			if _, err := os.Stat(dir + "/" + name + "/.hbmfs-manifest.json"); (err == nil) != is {
				t.Errorf("of %s: %v", name, err)
			}
		}
	})
}

// TestKilledInsideItsFile: a rank is killed in the middle of its file, and DeepSpeed's rank 0 writes latest all the same. Nobody asked for half a checkpoint.
func TestKilledInsideItsFile(t *testing.T) {
	v := mount(t)
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateHeader(&zip.FileHeader{Name: "archive/data/0", Method: zip.Store})
	blackbox.Must(t, err)
	_, err = w.Write(make([]byte, 1<<20))
	blackbox.Must(t, errors.Join(err, z.Close()))
	whole, half := b.Bytes(), b.Bytes()[:b.Len()/2]
	header := `{"t":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}`
	tensors := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...) // and no bytes
	for _, c := range []struct {
		name, file string
		text       []byte
		cut        bool
	}{
		{"global_step1", "zero_pp_rank_1_mp_rank_00_optim_states.pt", half, true}, {"global_step2", "zero_pp_rank_1_mp_rank_00_optim_states.pt", whole, false},
		{"global_step3", "zero_pp_rank_1_mp_rank_00_optim_states.pt", nil, true}, {"global_step4", "model.safetensors", tensors, true},
	} {
		rank := exec.Command("sh", "-c", `mkdir "$1"; exec cat >"$1/$2"`, "sh", v.Path(c.name), c.file)
		in, err := rank.StdinPipe()
		blackbox.Must(t, err)
		blackbox.Must(t, rank.Start())
		_, err = in.Write(c.text)
		blackbox.Must(t, err)
		if !blackbox.Within(volumetest.Patience, func() bool {
			info, err := os.Stat(v.Path(c.name, c.file))
			return err == nil && info.Size() == int64(len(c.text))
		}) {
			t.Fatalf("%s: rank 1 does not write", c.name)
		}
		zero := exec.Command("sh", "-c", `cat >"$1/mp_rank_00_model_states.pt" && printf %s "$2" >"$3"`, "sh", v.Path(c.name), c.name, v.Path("latest"))
		zero.Stdin = bytes.NewReader(whole)
		out, err := zero.CombinedOutput()
		blackbox.Must(t, errors.Join(err, rank.Process.Kill(), in.Close()))
		_ = rank.Wait() // by the signal
		if len(out) > 0 {
			t.Fatalf("%s", out)
		}
		if !c.cut {
			isPublished(t, v, c.name)
			continue
		}
		why := `file "` + c.file + `" is not whole`
		if !blackbox.Within(volumetest.Patience, func() bool {
			s := v.State(t).Checkpoints
			i := slices.IndexFunc(s.Drafts, func(d status.DraftState) bool { return d.Name == c.name })
			return published(v, c.name) || i >= 0 && strings.Contains(s.Drafts[i].Refused, why)
		}) || published(v, c.name) {
			t.Errorf("%s: published: %v; %+v", c.name, published(v, c.name), v.State(t).Checkpoints)
		}
		if code, out, errs := run(t, "checkpoint", "ls", v.Dir); code != 0 || !strings.Contains(out, why) {
			t.Errorf("%s: checkpoint ls ends with %d and says %s%s", c.name, code, out, errs)
		}
	}
	if code, out, errs := run(t, "publish", v.Path("global_step1")); code != 0 || !published(v, "global_step1") { // whoever asks for it gets it
		t.Errorf("hbmfs publish ends with %d: %s%s", code, out, errs)
	}
}
