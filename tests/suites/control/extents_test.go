package control_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// TestExtentsCommand puts every golden file together from the source, by what `hbmfs extents --json` says alone.
func TestExtentsCommand(t *testing.T) {
	blackbox.NeedRoot(t)
	goldenFiles(t, func(t *testing.T, m *mounted, path string) {
		if blackbox.Race && path != m.Path(".hbmfs", "views", "tokens.npy") {
			return // starting hbmfs under the race detector takes a second
		}
		out, err := suite.Output(limited(t), "extents", "--json", path)
		must(t, err)
		var said struct {
			Size    int64 `json:"size"`
			Extents []struct {
				Logical, Length, Offset int64
				Path                    string
				Flags                   []string
			} `json:"extents"`
		}
		must(t, json.Unmarshal(out, &said))
		want, err := os.ReadFile(path)
		must(t, err)
		var got []byte
		for _, e := range said.Extents {
			if e.Logical != int64(len(got)) {
				t.Fatalf("%s: the extent at %d follows byte %d", path, e.Logical, len(got))
			}
			if len(e.Flags) == 1 && e.Flags[0] == "inline" && e.Path == "" {
				got = append(got, want[e.Logical:e.Logical+e.Length]...)
				continue
			}
			source, err := os.ReadFile(filepath.Join(m.source, e.Path))
			must(t, err)
			got = append(got, source[e.Offset:e.Offset+e.Length]...)
		}
		if said.Size != int64(len(want)) || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes by %d extents, size %d, want %d", path, len(got), len(said.Extents), said.Size, len(want))
		}
	})
}

// TestLocateCommand puts every golden file together from the local files that `hbmfs locate --json` names.
func TestLocateCommand(t *testing.T) {
	blackbox.NeedRoot(t)
	goldenFiles(t, func(t *testing.T, m *mounted, path string) {
		if blackbox.Race && path != m.Path(".hbmfs", "views", "tokens.npy") {
			return // as above
		}
		out, err := suite.Command(limited(t), "locate", "--json", path).Output()
		var said struct {
			Size  int64
			Whole string
			Local bool
			Runs  []struct {
				Offset, Length, Count, At, Stride int64
				Path, Why                         string
			}
		}
		if jsonErr := json.Unmarshal(out, &said); jsonErr != nil {
			t.Fatalf("%v: %v", err, jsonErr)
		}
		if (err == nil) != said.Local { // exit code 3 else
			t.Errorf("%s: local %v, and %v", path, said.Local, err)
		}
		want, err := os.ReadFile(path)
		must(t, err)
		var got []byte
		for _, r := range said.Runs {
			for k := range r.Count {
				at := r.Offset + k*r.Length
				if at != int64(len(got)) {
					t.Fatalf("%s: the piece at %d follows byte %d", path, at, len(got))
				}
				if r.Why != "" {
					got = append(got, want[at:at+r.Length]...)
					continue
				}
				local, err := os.ReadFile(r.Path)
				must(t, err)
				got = append(got, local[r.At+k*r.Stride:][:r.Length]...)
			}
		}
		if said.Size != int64(len(want)) || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes by %d runs, size %d, want %d", path, len(got), len(said.Runs), said.Size, len(want))
		}
		if said.Whole != "" {
			local, err := os.ReadFile(said.Whole)
			must(t, err)
			if !bytes.Equal(local, want) {
				t.Errorf("%s is not %s", said.Whole, path)
			}
		}
	})
}

func TestLocateCommandForPeople(t *testing.T) {
	m := mount(t, "../../data/testdata/nanogpt")
	source, err := filepath.Abs("../../data/testdata/nanogpt/train.bin")
	must(t, err)
	out, err := suite.Output(limited(t), "locate", m.Path("train.bin"))
	if err != nil || string(out) != source+"\n" {
		t.Errorf("%q, %v, want %s", out, err, source)
	}
	if _, err := suite.Output(limited(t), "locate", source); err == nil || !strings.Contains(err.Error(), "give cuFile the path as it is") {
		t.Errorf("a file of no mount: %v", err)
	}
}

func TestExtentsCommandForPeople(t *testing.T) {
	m := mount(t, "../../data/testdata/nanogpt", "--show-views")
	view, err := m.View("tokens.npy")
	must(t, err)
	out, err := suite.Output(limited(t), "extents", view)
	must(t, err)
	for _, part := range []string{"LOGICAL", "(inline)", ".bin"} {
		if !strings.Contains(string(out), part) {
			t.Errorf("the table lacks %q:\n%s", part, out)
		}
	}
	var said strings.Builder
	command := suite.Command(limited(t), "extents", view)
	read, write, err := os.Pipe()
	must(t, err)
	must(t, read.Close())
	command.Stdout, command.Stderr = write, &said
	if _ = command.Run(); command.ProcessState.ExitCode() != 128+int(syscall.SIGPIPE) || said.Len() > 0 { // as a shell says of a program behind | head
		t.Errorf("nobody reads the output: %v, %q", command.ProcessState, said.String())
	}
	must(t, write.Close())
	for path, part := range map[string]string{"../../data/testdata/expect.json": "not a data file of an hbmfs mount", m.Path("none"): "no such file"} {
		if _, err := suite.Output(limited(t), "extents", path); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("extents of %s: %v, want %q", path, err, part)
		}
	}
}

// Names of files are others' words, and a terminal obeys some characters.
func TestExtentsCommandShowsNamesAsTheyPrint(t *testing.T) {
	source := suite.NewDir(t)
	must(t, os.WriteFile(filepath.Join(source, "a\n\x1b[2Jb"), []byte("some text"), 0o644))
	m := mount(t, source)
	out, err := suite.Output(limited(t), "extents", m.Path("a\n\x1b[2Jb"))
	must(t, err)
	if said := string(out); strings.Count(said, "a??[2Jb") != 2 || strings.Contains(said, "\x1b") {
		t.Errorf("%q", said)
	}
}
