package hub_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/hub"
)

// goldenFiles are the files of a golden dataset.
func goldenFiles(t *testing.T, name string) map[string][]byte {
	t.Helper()
	files, root := map[string][]byte{}, filepath.Join("../../data/testdata", name)
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(rel)], err = os.ReadFile(path)
		return err
	}))
	return files
}

func wantFiles(t *testing.T, m *blackbox.Mounted, files map[string][]byte) {
	t.Helper()
	for name, want := range files {
		if got, err := os.ReadFile(m.Path(name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v, or other bytes\nlog:\n%s", name, err, m.LogText(t))
		}
	}
}

// TestMountOfADataset mounts tokenized Parquet of the Hub: the tokens are those of the same files in a directory. The branch moves
// under the mount, and the mount stays.
func TestMountOfADataset(t *testing.T) {
	blackbox.NeedFUSE(t)
	h := hub.New(t)
	repo, files := h.Repo("datasets/org/tokens"), goldenFiles(t, "parquet")
	first := repo.Commit(files)
	dir, err := filepath.Abs("../../data/testdata/parquet")
	must(t, err)
	for _, flags := range [][]string{nil, {"--cache-dir", suite.NewDir(t)}} {
		local, m := mount(t, dir), mount(t, repo.Source(), flags...)
		if s := statusOf(t, m); !strings.HasPrefix(s.Source, "hf://datasets/org/tokens@"+first+"?") {
			t.Errorf("the status names %s, and not the commit %s", s.Source, first)
		}
		views, err := filepath.Glob(local.Path(".hbmfs", "views", "*", "*"))
		must(t, err)
		deeper, err := filepath.Glob(local.Path(".hbmfs", "views", "*"))
		must(t, err)
		compared := 0
		for _, view := range append(views, deeper...) {
			want, err := os.ReadFile(view)
			if err != nil || strings.HasSuffix(view, ".json") { // a directory, or it names the source
				continue
			}
			name, err := filepath.Rel(local.Point, view)
			must(t, err)
			got, err := os.ReadFile(m.Path(name))
			if compared++; err != nil || !bytes.Equal(got, want) {
				t.Errorf("the view %s: %v, or other bytes", name, err)
			}
		}
		if compared == 0 {
			t.Error("there is no view of tokens")
		}
		repo.Commit(map[string][]byte{"README.md": []byte("moved"), "more.bin": origintest.Data(5000, 1)})
		wantFiles(t, m, files)
		if _, err := os.Stat(m.Path("more.bin")); !os.IsNotExist(err) {
			t.Errorf("a file of a later commit is there: %v", err)
		}
		repo.Branch("main", first)
	}
}

// TestNextDaemonKeepsTheCommit has another daemon go on with a mount after the branch moved.
func TestNextDaemonKeepsTheCommit(t *testing.T) {
	blackbox.NeedRoot(t)
	h := hub.New(t)
	repo := h.Repo("models/org/name")
	files := map[string][]byte{"sub/a.bin": origintest.Data(5000, 1), "sub/b.json": []byte("{}")}
	first := repo.Commit(files)
	point := suite.NewDir(t)
	m := suite.MountOn(t, repo.Source(), point)
	repo.Commit(map[string][]byte{"sub/a.bin": origintest.Data(6000, 2), "sub/b.json": nil})
	if r := suite.Run(t, "upgrade", point); r.Code != 0 {
		t.Skip("no daemon goes on with the mount of another here: " + r.Stderr)
	}
	wantFiles(t, m, files)
	if s := statusOf(t, m); !strings.Contains(s.Source, "@"+first) {
		t.Errorf("the status names %s", s.Source)
	}
}

// TestVerifyAtTheHub compares bytes with the Hub's hashes: all of a source, all of a cache, and files of a mount. A storage that gives other bytes of
// the same length is found out, and the mount refuses the file the second time.
func TestVerifyAtTheHub(t *testing.T) {
	blackbox.NeedFUSE(t)
	h := hub.New(t)
	repo, data := h.Repo("models/org/name"), origintest.Data(3<<20+5, 1)
	repo.Commit(map[string][]byte{"a.bin": data, "b.json": []byte("{}"), "c.bin": origintest.Data(5000, 2)})
	inspect := func() (code int, problems string) {
		t.Helper()
		r := suite.Run(t, "inspect", "--verify", "--json", repo.Source())
		var found struct {
			Problems []struct{ Object, Detail string }
			Verified struct{ Files int }
		}
		must(t, json.Unmarshal([]byte(r.Stdout), &found))
		if found.Verified.Files != 3 {
			t.Errorf("%d files were verified", found.Verified.Files)
		}
		return r.Code, fmt.Sprint(found.Problems)
	}
	verified := func(compared, mismatched int64) {
		t.Helper()
		cache := suite.NewDir(t)
		m := mount(t, repo.Source(), "--cache-dir", cache, "--cache-segment=1MiB")
		var errs [2]error
		for i, name := range []string{"a.bin", "b.json"} {
			_, errs[i] = os.ReadFile(m.Path(name))
		}
		if !blackbox.Within(blackbox.Patience, func() bool {
			if mismatched > 0 { // they are fetched again once
				for _, name := range []string{"a.bin", "c.bin"} {
					_, _ = os.ReadFile(m.Path(name)) // it may be refused
				}
			}
			c := m.Status(t).Cache
			return c.Compared == compared && c.Mismatched == mismatched
		}) {
			t.Errorf("%+v: want %d files compared and %d mismatches", m.Status(t).Cache, compared, mismatched)
		}
		if mismatched > 0 {
			_, errs[0] = os.ReadFile(m.Path("a.bin"))
		}
		if errors.Is(errs[0], syscall.EIO) != (mismatched > 0) || errs[1] != nil {
			t.Errorf("reads after %d mismatches: %v", mismatched, errs)
		}
		m.End(t)
		if r := suite.Run(t, "cache", "verify", "--json", cache); r.Code != 0 {
			t.Errorf("cache verify ends with %d: %s", r.Code, r.Stdout)
		}
	}
	if code, problems := inspect(); code != 0 || problems != "[]" {
		t.Errorf("inspect ends with %d: %s", code, problems)
	}
	verified(3, 0) // the mount itself looks into c.bin
	h.Set(func() {
		h.Answer = func(w http.ResponseWriter, r *http.Request) bool {
			var from, to int
			if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n < 2 || !strings.HasPrefix(r.URL.Path, "/lfs/") {
				return false
			}
			body := bytes.Repeat([]byte("x"), to-from+1)
			size := len(data)
			if to < 5000 {
				size = 5000
			}
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, size))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(body) // they may have hung up
			return true
		}
	})
	if code, problems := inspect(); code != 3 || strings.Count(problems, "the bytes have sha256") < 1 {
		t.Errorf("inspect ends with %d: %s", code, problems)
	}
	verified(1, 4)
}

// TestOffline mounts from the local cache of the Hub's tools, and asks nobody. The snapshot's directory is a source, too.
func TestOffline(t *testing.T) {
	blackbox.NeedFUSE(t)
	const commit = "0123456789abcdef0123456789abcdef01234567"
	home := suite.NewDir(t)
	repo := filepath.Join(home, "hub", "models--org--name")
	at := filepath.Join(repo, "snapshots", commit)
	data := origintest.Data(50_000, 1)
	for dir, files := range map[string]map[string][]byte{"blobs": {"aa": data}, "refs": {"main": []byte(commit)}, "snapshots/" + commit + "/sub": nil} {
		must(t, os.MkdirAll(filepath.Join(repo, dir), 0o755))
		for name, text := range files {
			must(t, os.WriteFile(filepath.Join(repo, dir, name), text, 0o644))
		}
	}
	must(t, os.Symlink("../../../blobs/aa", filepath.Join(at, "sub", "a.bin")))
	t.Setenv("HF_HOME", home)
	t.Setenv("HF_HUB_OFFLINE", "1")
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	for _, source := range []string{"hf://org/name", "hf://models/org/name@" + commit, at} {
		m := mount(t, source)
		wantFiles(t, m, map[string][]byte{"sub/a.bin": data})
		if os.Geteuid() == 0 {
			if r := suite.Run(t, "read", "--to", "host", m.Path("sub/a.bin")); r.Code != 0 {
				t.Errorf("read ended with %d: %s", r.Code, r.Stderr)
			}
		}
		m.End(t)
	}
	if r := suite.Run(t, "ls", "hf://datasets/org/other"); r.Code == 0 || !strings.Contains(r.Stderr, "it is not in the local cache of the Hub") {
		t.Errorf("ls ends with %d: %s", r.Code, r.Stderr)
	}
}

// TestLocalBlobs mounts a repository from the Hub whose files also lie in the local cache of the Hub's tools. A good blob is read in place of the
// storage's, until somebody replaces it. One with other bytes is not read.
func TestLocalBlobs(t *testing.T) {
	blackbox.NeedFUSE(t)
	h, home := hub.New(t), suite.NewDir(t)
	repo := h.Repo("models/org/name")
	files := map[string][]byte{"good.bin": origintest.Data(50_000, 1), "wrong.bin": origintest.Data(60_000, 2), "missing.bin": origintest.Data(70_000, 3)}
	repo.Commit(files)
	t.Setenv("HF_HUB_CACHE", home)
	dir := filepath.Join(home, "models--org--name", "blobs")
	blob := func(of string, data []byte) {
		t.Helper()
		name := filepath.Join(dir, fmt.Sprintf("%x", sha256.Sum256(files[of])))
		must(t, errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(name+".new", data, 0o644), os.Rename(name+".new", name)))
	}
	blob("good.bin", files["good.bin"])
	blob("wrong.bin", origintest.Data(60_000, 4))
	m := mount(t, repo.Source())
	asks := func(name string) bool {
		t.Helper()
		f, err := os.Open(m.Path(name))
		must(t, err)
		defer func() { must(t, f.Close()) }()
		must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		before := len(h.Requests())
		if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, files[name]) {
			t.Errorf("%s: %v, or other bytes\nlog:\n%s", name, err, m.LogText(t))
		}
		return len(h.Requests()) > before
	}
	if !blackbox.Within(blackbox.Patience, func() bool { return !asks("good.bin") }) {
		t.Error("the Hub is asked for bytes that lie here")
	}
	for range 3 {
		if asks("good.bin") || !asks("wrong.bin") || !asks("missing.bin") {
			t.Error("the Hub is asked for what lies here, or not for what does not")
		}
	}
	blob("good.bin", origintest.Data(50_000, 5))
	if !asks("good.bin") {
		t.Error("a blob that was replaced is read")
	}
}

// TestNameOfOnePart mounts a model of the Hub's own, such as gpt2.
func TestNameOfOnePart(t *testing.T) {
	blackbox.NeedFUSE(t)
	h := hub.New(t)
	repo := h.Repo("models/gpt2")
	files := map[string][]byte{"config.json": []byte("{}"), "sub/a.bin": origintest.Data(5000, 1)}
	commit := repo.Commit(files)
	for _, name := range []string{"gpt2", "models/gpt2@main", "gpt2@" + commit} {
		m := mount(t, "hf://"+name+"?endpoint="+h.URL)
		wantFiles(t, m, files)
		if s := statusOf(t, m); !strings.HasPrefix(s.Source, "hf://models/gpt2@"+commit) {
			t.Errorf("the status names %s", s.Source)
		}
	}
	one := mount(t, "hf://gpt2@main/sub?endpoint="+h.URL)
	wantFiles(t, one, map[string][]byte{"a.bin": files["sub/a.bin"]})
}

// TestPeersHubClient has huggingface_hub download a model and a dataset from the Hub of these tests, and compares the files with a mount's.
// So the Hub of these tests answers as the client expects. HBMFS_PEERS names a Python that has the client.
func TestPeersHubClient(t *testing.T) {
	python := os.Getenv("HBMFS_PEERS")
	if python == "" {
		t.Skip("HBMFS_PEERS names no Python with huggingface_hub: make test-peers makes one")
	}
	blackbox.NeedFUSE(t)
	h := hub.New(t)
	files := goldenFiles(t, "parquet")
	files["config.json"], files["sub dir/weights#1.bin"] = []byte("{}"), origintest.Data(200_000, 1)
	for _, kind := range []string{"model", "dataset"} {
		repo := h.Repo(kind + "s/org/gated")
		repo.Gated = true
		repo.Commit(files)
		home := suite.NewDir(t)
		cmd := exec.CommandContext(t.Context(), python, "-c", `import sys, huggingface_hub
print(huggingface_hub.snapshot_download("org/gated", repo_type=sys.argv[1], max_workers=2))`, kind)
		cmd.Env = append(os.Environ(), "HF_ENDPOINT="+h.URL, "HF_TOKEN="+h.Token, "HF_HOME="+home, "HF_HUB_DISABLE_XET=1", "HF_HUB_DISABLE_PROGRESS_BARS=1", "HF_HUB_DISABLE_TELEMETRY=1")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		must(t, err)
		snapshot := strings.TrimSpace(string(out))
		t.Setenv("HF_TOKEN", h.Token)
		m, local := mount(t, repo.Source()), mount(t, snapshot)
		for name, want := range files {
			downloaded, err := os.ReadFile(filepath.Join(snapshot, name))
			if err != nil || !bytes.Equal(downloaded, want) {
				t.Errorf("huggingface_hub has other bytes of %s: %v", name, err)
			}
		}
		wantFiles(t, m, files)
		wantFiles(t, local, files)
	}
}

// TestPeersLoadAModel has transformers load a model through a mount of the Hub, as it loads the same files from a directory.
func TestPeersLoadAModel(t *testing.T) {
	python := os.Getenv("HBMFS_PEERS")
	if python == "" {
		t.Skip("HBMFS_PEERS names no Python with transformers: make test-peers makes one")
	}
	blackbox.NeedFUSE(t)
	run := func(program string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), python, append([]string{"-W", "ignore", "-c", program}, args...)...)
		cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "CUDA_VISIBLE_DEVICES=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	dir, files := suite.NewDir(t), map[string][]byte{}
	run(`import sys
from transformers import GPT2Config, GPT2LMHeadModel
GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=32, n_positions=16)).save_pretrained(sys.argv[1])`, dir)
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	for _, name := range names {
		files[filepath.Base(name)], err = os.ReadFile(name)
		must(t, err)
	}
	repo := hub.New(t).Repo("models/org/gpt2")
	repo.Commit(files)
	run(`import sys
from transformers import AutoModelForCausalLM
one, two = (AutoModelForCausalLM.from_pretrained(d).state_dict() for d in sys.argv[1:])
assert one.keys() == two.keys() and all((one[k] == two[k]).all() for k in one)`, mount(t, repo.Source()).Point, dir)
}
