package volumetest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// pastFiles are the files that these tests' writers write past FUSE.
func pastFiles() map[string][]byte {
	return map[string][]byte{"file": []byte("bytes"), "sub/file": bytes.Repeat([]byte("0123456789"), 600_000), "empty": nil}
}

// SumsOf gives the sums of the chunks of a file.
func SumsOf(data []byte) (sums []uint32) {
	for chunk := range slices.Chunk(data, control.SumChunk) {
		sums = append(sums, crc32.Checksum(chunk, crc32.MakeTable(crc32.Castagnoli)))
	}
	return sums
}

// PastSteps are the steps of WritePast, in their order.
func PastSteps() []string {
	return []string{"begun", "added", "written", "closed", "half sealed", "sealed", "published"}
}

// WritePast writes a checkpoint past FUSE, and calls at after each step.
func WritePast(ctx context.Context, path string, at func(step string)) error {
	d, err := control.BeginDraft(ctx, path, 0, 1, "test")
	if err != nil {
		return err
	}
	at("begun")
	data := pastFiles()
	var files []control.NewFile
	total := int64(0)
	for _, name := range []string{"file", "sub/file", "empty"} {
		files = append(files, control.NewFile{Name: name, Size: int64(len(data[name]))})
		total += files[len(files)-1].Size
	}
	first, pens, err := d.Add(ctx, files...)
	if err != nil {
		return errors.Join(err, d.Drop(ctx))
	}
	at("added")
	for i, pen := range pens {
		if _, err := pen.WriteAt(data[files[i].Name], 0); err != nil {
			return err
		}
	}
	at("written")
	for i, pen := range pens {
		if err := errors.Join(pen.Truncate(files[i].Size), pen.Sync(), pen.Close()); err != nil {
			return err
		}
	}
	at("closed")
	for i := range files {
		if err := d.Seal(ctx, first+uint32(i), SumsOf(data[files[i].Name])); err != nil {
			return err
		}
		if i == 0 {
			at("half sealed")
		}
	}
	at("sealed")
	if err := d.Publish(ctx, len(files), total); err != nil {
		return err
	}
	at("published")
	return nil
}

// PastWriter is a process that writes a checkpoint past FUSE, and stops at a step until it may go on.
type PastWriter struct {
	*exec.Cmd
	Out *bufio.Reader
	In  io.WriteCloser
}

// StartPast starts a writer, and returns when it has stopped at the step.
func StartPast(t *testing.T, path, step string) *PastWriter {
	t.Helper()
	w := &PastWriter{Cmd: exec.Command("/proc/self/exe", path, step)}
	w.Env = append(os.Environ(), ChildVerb+"=past")
	out, err := w.StdoutPipe()
	blackbox.Must(t, err)
	w.In, err = w.StdinPipe()
	blackbox.Must(t, err)
	w.Out = bufio.NewReader(out)
	blackbox.Must(t, w.Start())
	if line, err := w.Out.ReadString('\n'); line != "there\n" {
		t.Fatalf("the writer says %q, %v", line, err)
	}
	return w
}

// past is the child's work.
func past(path, stop string) error {
	return WritePast(context.Background(), path, func(step string) {
		if step == stop {
			fmt.Println("there")
			_, _ = os.Stdin.Read(make([]byte, 1)) // its parent says when
		}
	})
}

// PastIsWhole tells whether a checkpoint is there, on the disk and through the mount.
func PastIsWhole(t *testing.T, v *Volume, name string) {
	t.Helper()
	for _, path := range []string{v.Path(name), filepath.Join(v.Dir, name)} {
		for file, data := range pastFiles() {
			if got, err := os.ReadFile(filepath.Join(path, file)); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s/%s has %d bytes, %v", path, file, len(got), err)
			}
		}
	}
	if r := v.suite.Run(t, "checkpoint", "verify", filepath.Join(v.Dir, name)); r.Code != 0 {
		t.Errorf("verify: %+v", r)
	}
}
