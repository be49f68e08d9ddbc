package lies_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/lies/liar"
)

// TestEachCommandIsPatient has each command that opens a remote source ask one that answers only errors or nothing, from the beginning or once it
// has listed its objects. Each ends by its patience, says why, and leaves no process.
func TestEachCommandIsPatient(t *testing.T) {
	t.Parallel()
	good := liar.S3(t, map[string][]byte{"good.jsonl": []byte(`{"text":"a"}` + "\n")}, nil, nil)
	dark := map[string]func(x *liar.Exchange) bool{
		"errors":  func(x *liar.Exchange) bool { x.Text(http.StatusInternalServerError, ""); return true },
		"silence": func(x *liar.Exchange) bool { <-x.R.Context().Done(); return true },
	}
	texts, tokens, checkpoints := map[string][]byte{}, map[string][]byte{}, map[string][]byte{}
	for i := range 50 {
		texts[fmt.Sprintf("%02d.jsonl", i)] = []byte(`{"text":"a"}` + "\n")
		tokens[fmt.Sprintf("%02d.npy", i)] = origintest.Data(600, 1)
		checkpoints[fmt.Sprintf("step_%d/hbmfs-manifest.json", i)] = []byte("{}")
	}
	local := suite.NewDir(t)
	must(t, os.WriteFile(filepath.Join(local, "a.jsonl"), texts["00.jsonl"], 0o644))
	for name, c := range map[string]struct {
		files  map[string][]byte
		args   []string // in which SOURCE and OUT stand for these
		reads  bool     // it reads more than listings
		mounts bool
	}{
		"ls":                              {texts, []string{"ls", "SOURCE"}, false, false},
		"inspect":                         {tokens, []string{"inspect", "SOURCE"}, true, false},
		"inspect --verify":                {tokens, []string{"inspect", "--verify", "SOURCE"}, true, false},
		"mount":                           {tokens, []string{"mount", "--log-file", "OUT.log", "--format", "npy", "SOURCE", "OUT"}, true, true},
		"pack texts":                      {texts, []string{"pack", "SOURCE", "OUT"}, true, false},
		"pack tokens":                     {tokens, []string{"pack", "--from", "tokens", "SOURCE", "OUT"}, true, false},
		"pack several":                    {texts, []string{"pack", good.Source(), "SOURCE", "OUT"}, true, false},
		"pack a directory and the source": {texts, []string{"pack", local, "SOURCE", "OUT"}, true, false},
		"pack a part":                     {texts, []string{"pack", "--part", "0/2", good.Source(), "SOURCE", "OUT"}, true, false},
		"checkpoint ls":                   {checkpoints, []string{"checkpoint", "ls", "SOURCE"}, true, false},
	} {
		for how, tell := range dark {
			for _, lists := range []bool{false, true} {
				if lists && !c.reads {
					continue
				}
				t.Run(fmt.Sprintf("%s, %s, lists %v", name, how, lists), func(t *testing.T) {
					t.Parallel()
					if c.mounts {
						blackbox.NeedFUSE(t)
					}
					list := tell
					if lists {
						list = func(x *liar.Exchange) bool { return x.Name != "" && tell(x) } // of S3's, a manifest is read as a whole
					}
					l := liar.S3(t, c.files, tell, list)
					out := filepath.Join(suite.NewDir(t), "out")
					if c.mounts {
						must(t, os.Mkdir(out, 0o755))
					}
					var args []string
					for _, a := range c.args {
						args = append(args, strings.NewReplacer("SOURCE", l.Source(), "OUT", out).Replace(a))
					}
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					said, err := suite.Command(ctx, append(args, "--patience", "1s")...).CombinedOutput()
					why := map[string]string{"errors": "500", "silence": "cannot be reached"}[how]
					if c.args[0] == "checkpoint" {
						why = "silent"
					}
					if err == nil || ctx.Err() != nil || !strings.Contains(string(said), why) {
						t.Errorf("it ends by %v (%v) and says %.600q, want %q", err, ctx.Err(), said, why)
					}
					if left := blackbox.Within(patience, func() bool { return !runsWith(l.URL) }); !left {
						t.Error("a process stays")
					}
				})
			}
		}
	}
}

// runsWith reports whether a process has a text among its arguments, which stand escaped for one of S3.
func runsWith(address string) bool {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well-formed
	host := strings.TrimPrefix(address, "http://")
	for _, line := range lines {
		text, err := os.ReadFile(line) // of a process that has ended it cannot be read
		if err == nil && (bytes.Contains(text, []byte(host)) || bytes.Contains(text, []byte(strings.Replace(host, ":", "%3A", 1)))) {
			return true
		}
	}
	return false
}
