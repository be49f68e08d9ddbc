package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// What was there stays where the new file cannot be written, and its mode and the links to it stay in any case.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "cufile.json"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("before"), 0o640), os.Symlink("cufile.json", link)); err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space left on device")
	err := replaceFile(link, func(w io.Writer) error {
		_, _ = io.WriteString(w, "a part")
		return full
	})
	if text, _ := os.ReadFile(file); !errors.Is(err, full) || string(text) != "before" {
		t.Errorf("a full disk: %v, and the file has %q", err, text)
	}
	after := func(w io.Writer) error { _, err := io.WriteString(w, "after"); return err }
	err = replaceFile(link, after)
	info, statErr := os.Lstat(link)
	if text, _ := os.ReadFile(file); err != nil || string(text) != "after" || statErr != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("%v, the file has %q, and the link is %v", err, text, info)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(replaceFile(fmt.Sprintf("/proc/self/fd/%d", write.Fd()), after), write.Close()); err != nil {
		t.Errorf("a pipe: %v", err)
	}
	if text, err := io.ReadAll(read); string(text) != "after" {
		t.Errorf("the pipe has %q, %v", text, err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 2 {
		t.Errorf("the directory has %v, %v", names, err)
	}
	if err := replaceFile(filepath.Join(dir, "none", "file"), after); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}
