package handover_test

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// ringReader reads a view through io_uring, several pieces at a time, nil where the kernel or the container has none.
func ringReader(t *testing.T, view string, of []byte) *reader {
	t.Helper()
	ring, err := mounttest.NewRing()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Logf("no reader by io_uring: %v", err)
		return nil
	}
	must(t, err)
	t.Cleanup(func() { must(t, unix.Close(ring.Fd)) })
	f, err := os.Open(view)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	const piece, count = 16 << 10, 8
	buf := make([]byte, len(of))
	return &reader{name: "io_uring", step: func(r *rand.Rand) error {
		first := r.IntN(len(of)/piece - count)
		at := first * piece
		got := buf[at : at+count*piece]
		clear(got)
		dropped(f)
		failed, err := ring.Read(int(f.Fd()), buf, piece, first, count)
		if err == nil && failed > 0 {
			err = fmt.Errorf("%d of %d pieces failed", failed, count)
		}
		return errors.Join(err, equal(got, of[at:at+len(got)], "io_uring", int64(at)))
	}}
}

// loader is a trainer's way to read, in a process of its own.
type loader struct {
	kind string
	stop func() (count int, usual, longest time.Duration, wrong []string)
}

// megatronShards writes two shards of Megatron into a directory, and returns their tokens.
func megatronShards(t *testing.T, dir string) (stream []byte) {
	t.Helper()
	must(t, os.Mkdir(dir, 0o755))
	random := rand.NewChaCha8([32]byte{9})
	for shard := range 2 {
		const documents, length = 200, 2000
		content := make([]byte, 2*documents*length)
		_, err := random.Read(content)
		must(t, err)
		idx := append([]byte("MMIDIDX\x00\x00"), 1, 0, 0, 0, 0, 0, 0, 0, 8) // version 1, uint16: indexed_dataset.py of Megatron
		idx = binary.LittleEndian.AppendUint64(idx, documents)
		idx = binary.LittleEndian.AppendUint64(idx, documents+1)
		for range documents {
			idx = binary.LittleEndian.AppendUint32(idx, length)
		}
		for i := range documents {
			idx = binary.LittleEndian.AppendUint64(idx, uint64(2*i*length))
		}
		for i := range documents + 1 {
			idx = binary.LittleEndian.AppendUint64(idx, uint64(i))
		}
		prefix := filepath.Join(dir, fmt.Sprintf("part_%02d_document", shard))
		must(t, errors.Join(os.WriteFile(prefix+".bin", content, 0o644), os.WriteFile(prefix+".idx", idx, 0o644)))
		stream = append(stream, content...)
	}
	return stream
}

// loaders start the loaders whose Python is there: nanoGPT's needs HBMFS_PYTHON, Megatron's HBMFS_PEERS.
func loaders(t *testing.T, views string, stream, megatron []byte) (all []loader) {
	t.Helper()
	for _, l := range []struct {
		kind, python, views string
		stream              []byte
	}{{"nanogpt", "HBMFS_PYTHON", views, stream}, {"megatron", "HBMFS_PEERS", filepath.Join(views, "mg"), megatron}} {
		tokens := filepath.Join(suite.NewDir(t), "tokens")
		must(t, os.WriteFile(tokens, l.stream, 0o600))
		python := os.Getenv(l.python)
		if python == "" {
			t.Logf("no loader of %s: %s names no Python", l.kind, l.python)
			continue
		}
		all = append(all, startLoader(t, l.kind, python, l.views, tokens))
	}
	return all
}

func startLoader(t *testing.T, kind, python, views, tokens string) loader {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, "loaders.py", kind, views, tokens)
	var words strings.Builder
	cmd.Stderr = &words
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	said := bufio.NewReader(out)
	if line, err := said.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the loader of %s said %q: %v\n%s", kind, line, err, words.String())
	}
	return loader{kind, func() (int, time.Duration, time.Duration, []string) {
		var end struct {
			Count          int
			Usual, Longest float64
			Wrong          []string
		}
		must(t, in.Close())
		text, err := io.ReadAll(said)
		if err = errors.Join(err, cmd.Wait(), json.Unmarshal(text, &end)); err != nil { // SIGBUS, too
			end.Wrong = append(end.Wrong, fmt.Sprintf("%v: %s", err, words.String()))
		}
		seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
		return end.Count, seconds(end.Usual), seconds(end.Longest), end.Wrong
	}}
}
