package oci_test

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/oci"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

const repo = "org/model"

// model is a directory of safetensors, as files by name.
func model(t testing.TB) map[string][]byte {
	t.Helper()
	dir, files := mounttest.Golden(t, "safetensors"), map[string][]byte{}
	names, err := mounttest.ListTree(dir)
	must(t, err)
	for _, name := range names {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			files[name] = data
		}
	}
	if len(files) == 0 {
		t.Fatal("there are no golden files")
	}
	return files
}

func wantFiles(t *testing.T, m *blackbox.Mounted, files map[string][]byte) {
	t.Helper()
	for name, data := range files {
		if err := mounttest.CompareFile(m.Path(name), data); err != nil {
			t.Errorf("%v\nlog:\n%s", err, m.LogText(t))
		}
	}
}

// pushModelPack pushes files as ModelPack has them: weights raw, all else in a tar.
func pushModelPack(t testing.TB, r *oci.Registry, tag string, files map[string][]byte) oci.Descriptor {
	t.Helper()
	var layers []oci.Descriptor
	var rest []oci.Member
	for name, data := range files {
		if strings.HasSuffix(name, ".safetensors") {
			layers = append(layers, r.Blob(t, repo, oci.ModelRaw, data, oci.FilePath, name, oci.Title, name))
		} else {
			rest = append(rest, oci.Member{Name: name, Data: data})
		}
	}
	if len(rest) > 0 {
		layers = append(layers, r.Blob(t, repo, "application/vnd.cncf.model.weight.config.v1.tar", oci.Tar(t, rest...), oci.FilePath, "config"))
	}
	return r.Push(t, repo, tag, oci.ModelConfig, layers...)
}

// TestModelPack mounts a model: its files, its views, the digest in status, what commands say of it, and a cache that a second mount reads.
func TestModelPack(t *testing.T) {
	blackbox.NeedFUSE(t)
	r, files := oci.New(t), model(t)
	r.Set(func() { r.Redirects = true })
	files["docs/README.md"] = []byte("# Model")
	pushed := pushModelPack(t, r, "v1", files)
	source, cached := r.Source(repo+":v1"), suite.NewDir(t)
	m := mount(t, source, "--cache-dir", cached, "--cache-segment=1MiB")
	wantFiles(t, m, files)
	if got, want := m.Status(t).Source, r.Source(repo+"@"+pushed.Digest); got != want {
		t.Errorf("the source in status is %q, want %q", got, want)
	}
	if views, err := os.ReadDir(m.Path(".hbmfs", "views")); err != nil || len(views) == 0 {
		t.Errorf("%d views, %v", len(views), err)
	}
	for _, args := range [][]string{{"ls", source}, {"inspect", "--verify", r.Source(repo + "@" + pushed.Digest)}, {"inspect", m.Point}, {"cache", "verify", cached}} {
		if out, err := said(t, args...); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	if !blackbox.Within(blackbox.Patience, func() bool { return m.Status(t).Cache.Filling == 0 }) {
		t.Error("segments stay half filled")
	}
	asked := len(r.Requests())
	again := mount(t, source, "--cache-dir", cached, "--cache-segment=1MiB")
	wantFiles(t, again, files)
	for _, q := range r.Requests()[asked:] {
		if strings.Contains(q.Path, "/blobs/") && strings.HasSuffix(q.Path, oci.DigestOf(files["model.safetensors"])) {
			t.Errorf("the second mount asks for bytes that the cache has: %+v", q)
		}
	}
}

// TestATagThatMoves reads on what was mounted.
func TestATagThatMoves(t *testing.T) {
	blackbox.NeedFUSE(t)
	r := oci.New(t)
	old, fresh := map[string][]byte{"a.safetensors": origintest.Data(2<<20, 1)}, map[string][]byte{"a.safetensors": origintest.Data(2<<20, 2)}
	first := pushModelPack(t, r, "v1", old)
	m := mount(t, r.Source(repo+":v1"))
	pushModelPack(t, r, "v1", fresh)
	wantFiles(t, m, old)
	wantFiles(t, mount(t, r.Source(repo+":v1")), fresh)
	wantFiles(t, mount(t, r.Source(repo+"@"+first.Digest)), old)
	wantFiles(t, mount(t, r.Source(repo+":v1@"+first.Digest)), old)
}

// TestTokensEndInTheMiddle reads a file while the registry takes back its tokens, and its storage the addresses that it signed.
func TestTokensEndInTheMiddle(t *testing.T) {
	blackbox.NeedFUSE(t)
	r := oci.New(t)
	data := origintest.Data(16<<20, 1)
	pushModelPack(t, r, "v1", map[string][]byte{"a.safetensors": data})
	login(t, r, "user:password-secret")
	r.Set(func() { r.Redirects, r.Uses = true, 4 })
	var asked atomic.Int64
	r.Set(func() {
		r.Answer = func(http.ResponseWriter, *http.Request) bool {
			if asked.Add(1)%3 == 0 {
				r.Expire()
			}
			return false
		}
	})
	m := mount(t, r.Source(repo+":v1"), "--log-level=debug")
	wantFiles(t, m, map[string][]byte{"a.safetensors": data})
	tokens := 0
	for _, q := range r.Requests() {
		if q.Path == "/token" {
			tokens++
		}
		if q.Storage && (q.Authorization != "" || q.Header.Get("Cookie") != "" || q.Header.Get("Referer") != "") {
			t.Errorf("the storage sees the login: %+v", q)
		}
	}
	if tokens < 3 {
		t.Errorf("%d tokens were given", tokens)
	}
	status, err := os.ReadFile(m.Path(".hbmfs", "status"))
	must(t, err)
	if text := m.LogText(t) + string(status); strings.Contains(text, "secret") {
		t.Errorf("the log or the status has a secret:\n%s", text)
	}
}

// login has a registry want a login, and hbmfs find one.
func login(t *testing.T, r *oci.Registry, has string) {
	t.Helper()
	r.Set(func() { r.Login = "user:password-secret" })
	name := filepath.Join(suite.NewDir(t), "auth.json")
	must(t, os.WriteFile(name, fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, r.Host(), base64.StdEncoding.EncodeToString([]byte(has))), 0o600))
	t.Setenv("REGISTRY_AUTH_FILE", name)
}

// TestLogins finds a login in each place that Docker's tools have for it.
func TestLogins(t *testing.T) {
	r := oci.New(t)
	pushModelPack(t, r, "v1", map[string][]byte{"a.safetensors": []byte("data")})
	const user, password = "user", "password-secret"
	r.Set(func() { r.Login = user + ":" + password })
	auths := fmt.Sprintf(`{"auths":{%q:{"username":%q,"password":%q}}}`, r.Host(), user, password)
	helpers := suite.NewDir(t)
	must(t, os.WriteFile(filepath.Join(helpers, "docker-credential-test"), fmt.Appendf(nil, "#!/bin/sh\necho '{\"Username\":%q,\"Secret\":%q}'\n", user, password), 0o700))
	for name, c := range map[string]struct{ file, text string }{
		"REGISTRY_AUTH_FILE": {"auth.json", auths},
		"DOCKER_CONFIG":      {"config.json", auths},
		"HOME":               {".docker/config.json", auths},
		"XDG_RUNTIME_DIR":    {"containers/auth.json", auths},
		"a helper":           {"config.json", fmt.Sprintf(`{"credHelpers":{%q:"test"}}`, r.Host())},
		"a store":            {"config.json", fmt.Sprintf(`{"auths":{%q:{}},"credsStore":"test"}`, r.Host())},
	} {
		for _, basic := range []bool{false, true} {
			t.Run(fmt.Sprint(name, basic), func(t *testing.T) {
				r.Set(func() { r.Basic = basic })
				dir := suite.NewDir(t)
				file := filepath.Join(dir, c.file)
				must(t, os.MkdirAll(filepath.Dir(file), 0o700))
				must(t, os.WriteFile(file, []byte(c.text), 0o600))
				switch {
				case strings.HasPrefix(name, "a "):
					t.Setenv("DOCKER_CONFIG", dir)
					t.Setenv("PATH", helpers+":"+os.Getenv("PATH"))
				case name == "REGISTRY_AUTH_FILE":
					t.Setenv(name, file)
				default:
					t.Setenv(name, dir)
				}
				if out, err := said(t, "ls", r.Source(repo+":v1")); err != nil || !strings.Contains(out, "a.safetensors") {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
	}
}

// TestRefusals wants an answer at once, and one that says what to do.
func TestRefusals(t *testing.T) {
	honest := func(*oci.Registry) {}
	for name, c := range map[string]struct {
		login, reference string
		change           func(r *oci.Registry)
		says             []string
	}{
		"private, no login":     {"", ":v1", honest, []string{"no login for 127.0.0.1:", "docker login 127.0.0.1:", "REGISTRY_AUTH_FILE"}},
		"private, wrong login":  {"user:wrong-secret", ":v1", honest, []string{"401 Unauthorized: UNAUTHORIZED: incorrect username or password", "has ended, is wrong, or may not read this repository"}},
		"basic, wrong login":    {"user:wrong-secret", ":v1", func(r *oci.Registry) { r.Basic = true }, []string{"401 Unauthorized: UNAUTHORIZED: authentication required", "has ended, is wrong"}},
		"anonymous":             {"user:password-secret", ":v1?anonymous=true", honest, []string{"asked without a login (anonymous=true)"}},
		"no such tag":           {"user:password-secret", ":v2", honest, []string{`there is no tag "v2"`, "MANIFEST_UNKNOWN"}},
		"no such digest":        {"user:password-secret", "@" + oci.DigestOf(nil), honest, []string{`there is no manifest "sha256:e3b0c`}},
		"a file that is none":   {"", ":v1", func(*oci.Registry) { _ = os.Setenv("REGISTRY_AUTH_FILE", "/nowhere/auth.json") }, []string{"find the login for 127.0.0.1:", "/nowhere/auth.json", "no such file"}},
		"a busy registry's end": {"user:password-secret", ":v1", func(r *oci.Registry) { r.Answer = busy }, []string{"503 Service Unavailable", "cannot be reached"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := oci.New(t)
			pushModelPack(t, r, "v1", map[string][]byte{"a.safetensors": []byte("data")})
			login(t, r, c.login)
			if c.login == "" {
				t.Setenv("REGISTRY_AUTH_FILE", "")
			}
			r.Set(func() { c.change(r) })
			wantSaid(t, c.says, "ls", "--patience=1s", r.Source(repo+c.reference))
		})
	}
}

func busy(w http.ResponseWriter, _ *http.Request) bool {
	w.WriteHeader(http.StatusServiceUnavailable)
	return true
}

// TestBlobsThatAreNotWhatTheyAreCalled has a registry give other bytes than the digest says. The mount finds it once all of them are here, fetches
// them again and refuses them then. The next mount reads what an honest registry gives.
func TestBlobsThatAreNotWhatTheyAreCalled(t *testing.T) {
	blackbox.NeedFUSE(t)
	r := oci.New(t)
	data := origintest.Data(3<<20, 1)
	pushModelPack(t, r, "v1", map[string][]byte{"a.safetensors": data, "b.safetensors": data[:1<<20]})
	other := bytes.Clone(data)
	other[1<<20]++
	r.Set(func() {
		r.Answer = func(w http.ResponseWriter, q *http.Request) bool {
			if !strings.HasSuffix(q.URL.Path, "/blobs/"+oci.DigestOf(data)) {
				return false
			}
			serveRange(w, q, other)
			return true
		}
	})
	source, cached := r.Source(repo+":v1"), suite.NewDir(t)
	m := mount(t, source, "--cache-dir", cached, "--cache-segment=1MiB")
	if got, err := os.ReadFile(m.Path("a.safetensors")); err == nil && !bytes.Equal(got, other) { // it may be refused already
		t.Error("wrong bytes")
	}
	wantFiles(t, m, map[string][]byte{"b.safetensors": data[:1<<20]})
	if !blackbox.Within(blackbox.Patience, func() bool {
		_, err := os.ReadFile(m.Path("a.safetensors")) // it is fetched again once
		c := m.Status(t).Cache
		return errors.Is(err, syscall.EIO) && c.Mismatched == 2 && c.Compared == 1
	}) {
		t.Errorf("a blob with another digest is not refused: %+v", m.Status(t).Cache)
	}
	says := []string{"the bytes have sha256 " + strings.TrimPrefix(oci.DigestOf(other), "sha256:"), "the source says " + strings.TrimPrefix(oci.DigestOf(data), "sha256:")}
	for _, text := range append(says, "It is refused until the next mount") {
		if log := m.LogText(t); !strings.Contains(log, text) {
			t.Errorf("the log does not say %q:\n%s", text, log)
		}
	}
	wantSaid(t, says, "inspect", "--verify", source)
	r.Set(func() { r.Answer = nil })
	wantFiles(t, mount(t, source, "--cache-dir", cached, "--cache-segment=1MiB"), map[string][]byte{"a.safetensors": data, "b.safetensors": data[:1<<20]})
}

func serveRange(w http.ResponseWriter, q *http.Request, data []byte) {
	from, to, _ := blackbox.ParseRange(q.Header.Get("Range"))
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(data)))
	w.WriteHeader(http.StatusPartialContent)
	_, _ = w.Write(data[from : to+1]) // they may have hung up
}

// TestNoRanges has a registry that sends whole blobs only.
func TestNoRanges(t *testing.T) {
	blackbox.NeedFUSE(t)
	r := oci.New(t)
	data := origintest.Data(3<<20, 1)
	pushModelPack(t, r, "v1", map[string][]byte{"a.safetensors": data})
	r.Set(func() {
		r.Answer = func(w http.ResponseWriter, q *http.Request) bool {
			if strings.Contains(q.URL.Path, "/blobs/") {
				_, _ = w.Write(data) // they may have hung up
			}
			return strings.Contains(q.URL.Path, "/blobs/")
		}
	})
	m := mount(t, r.Source(repo+":v1"))
	if _, err := os.ReadFile(m.Path("a.safetensors")); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v, want EIO", err)
	}
	if log := m.LogText(t); !strings.Contains(log, "the server does not serve ranges") {
		t.Errorf("the log does not say so:\n%s", log)
	} else {
		t.Logf("%s", log)
	}
	wantSaid(t, []string{"the server does not serve ranges"}, "inspect", r.Source(repo+":v1"))
}

// TestMirrors asks another registry in place of the one that is named, and caches before it.
func TestMirrors(t *testing.T) {
	blackbox.NeedFUSE(t)
	r, mirror := oci.New(t), oci.New(t)
	files := map[string][]byte{"a.safetensors": origintest.Data(3<<20, 1)}
	pushed := pushModelPack(t, r, "v1", files)
	pushModelPack(t, mirror, "v1", files)
	source := "oci://registry.example/" + repo + ":v1?endpoint=" + mirror.URL
	m := mount(t, source)
	wantFiles(t, m, files)
	if got, want := m.Status(t).Source, "oci://registry.example/"+repo+"@"+pushed.Digest+"?endpoint="+mirror.URL; got != want {
		t.Errorf("the source in status is %q, want %q", got, want)
	}
	for _, q := range mirror.Requests() {
		if strings.Contains(q.Path, "/blobs/") && q.Query != "ns=registry.example" {
			t.Errorf("the mirror is not told for whom it stands: %+v", q)
		}
	}
	count := func(of *oci.Registry) (n int) {
		for _, q := range of.Requests() {
			if strings.Contains(q.Path, "/blobs/") {
				n++
			}
		}
		return n
	}
	before := count(mirror)
	through := mount(t, r.Source(repo+":v1"), "--through", mirror.URL)
	wantFiles(t, through, files)
	if count(r) != 0 || count(mirror) == before {
		t.Errorf("the registry was asked for %d blobs, the mirror for %d", count(r), count(mirror)-before)
	}
	mirror.Set(func() { mirror.Answer = busy })
	wantFiles(t, mount(t, r.Source(repo+":v1"), "--through", mirror.URL), files)
}

// TestPlatforms resolves an index to this machine's platform, or to the one that is named.
func TestPlatforms(t *testing.T) {
	r := oci.New(t)
	push := func(name string) oci.Descriptor {
		return r.Push(t, repo, name, oci.ImageConfig, r.Blob(t, repo, oci.ImageTar, oci.Tar(t, oci.Member{Name: "models/" + name, Data: []byte(name)})))
	}
	mine, other, plain := push("mine"), push("other"), push("plain")
	r.PushIndex(t, repo, "both", other.For("linux/s390x"), mine.For("linux/"+runtime.GOARCH), push("attestation").For("unknown/unknown"))
	inner := r.PushIndex(t, repo, "inner", mine.For("linux/"+runtime.GOARCH))
	r.PushIndex(t, repo, "outer", inner)
	r.PushIndex(t, repo, "plain-index", plain)
	r.PushIndex(t, repo, "foreign", other.For("linux/s390x"), push("windows").For("windows/amd64"))
	deep := inner
	for i := range 30 {
		deep = r.PushIndex(t, repo, fmt.Sprint("deep", i), deep)
	}
	for reference, want := range map[string]string{
		":both": "models/mine", ":both?platform=linux/s390x": "models/other", ":outer": "models/mine", ":plain-index": "models/plain", "@" + other.Digest: "models/other",
	} {
		if out, err := said(t, "ls", r.Source(repo+reference)); err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", reference, err, out)
		}
	}
	wantSaid(t, []string{"nothing for the platform linux/" + runtime.GOARCH, "It has linux/s390x, windows/amd64: name one, ?platform=OS/ARCHITECTURE"}, "ls", r.Source(repo+":foreign"))
	wantSaid(t, []string{"more than 16 manifests would have to be read"}, "ls", r.Source(repo+":deep29"))
}

// TestImages mounts layers of an image: later ones win, and whiteouts hide. Links are left out.
func TestImages(t *testing.T) {
	blackbox.NeedFUSE(t)
	r := oci.New(t)
	layer := func(members ...oci.Member) oci.Descriptor {
		return r.Blob(t, repo, oci.ImageTar, oci.Tar(t, members...))
	}
	file := func(name, text string) oci.Member { return oci.Member{Name: name, Data: []byte(text)} }
	r.Push(t, repo, "v1", oci.ImageConfig,
		layer(file("models/a", "old"), file("models/b", "b"), file("gone/x", "x"), file("swept/x", "x"), file("swept/y/z", "z"), file("file", "was a file"), file("dir/x", "was a directory")),
		layer(file("models/a", "new"), file(".wh.gone", ""), file("swept/.wh..wh..opq", ""), file("swept/new", "new"), file("file/x", "x"), file("dir", "is a file"),
			oci.Member{Name: "models/hard", Type: tar.TypeLink, Link: "models/a"}, oci.Member{Name: "models/soft", Type: tar.TypeSymlink, Link: "a"}, file("models/.wh..wh.plnk", "")),
	)
	m := mount(t, r.Source(repo+":v1"))
	wantFiles(t, m, map[string][]byte{
		"models/a": []byte("new"), "models/b": []byte("b"), "swept/new": []byte("new"), "file/x": []byte("x"), "dir": []byte("is a file"), "models/hard": []byte("new"),
	})
	names, err := mounttest.ListTree(m.Point)
	must(t, err)
	if got, want := strings.Join(names, " "), ". dir file file/x models models/a models/b models/hard swept swept/new"; got != want {
		t.Errorf("the mount has %q, want %q", got, want)
	}
	if log := m.LogText(t); !strings.Contains(log, "1 links, such as \\\"models/soft\\\", are left out") {
		t.Errorf("the log does not name the link:\n%s", log)
	}
}

// TestLayersOfOllama names files that have no title.
func TestLayersOfOllama(t *testing.T) {
	r := oci.New(t)
	const media = "application/vnd.ollama.image."
	blob := func(kind, text string) oci.Descriptor { return r.Blob(t, repo, media+kind, []byte(text)) }
	other := r.Blob(t, repo, "application/octet-stream", []byte("other"))
	r.Push(t, repo, "v1", "application/vnd.docker.container.image.v1+json", blob("model", "GGUF"), blob("license", "1"), blob("license", "2"), blob("params", "{}"), other)
	out, err := said(t, "ls", r.Source(repo+":v1"))
	must(t, err)
	for _, name := range []string{"model.gguf", "license", "license-2", "params.json", strings.Replace(other.Digest, ":", "-", 1)} {
		if !strings.Contains(out, name) {
			t.Errorf("%s is not listed:\n%s", name, out)
		}
	}
}

// TestCompressedLayers are refused, or left out where nothing depends on them.
func TestCompressedLayers(t *testing.T) {
	r := oci.New(t)
	packed := func(media string) oci.Descriptor { return r.Blob(t, repo, media, []byte("not looked at")) }
	plain := r.Blob(t, repo, oci.ImageTar, oci.Tar(t, oci.Member{Name: "model.bin", Data: []byte("data")}))
	r.Push(t, repo, "all", oci.ImageConfig, packed(oci.ImageTar+"+gzip"))
	r.Push(t, repo, "above", oci.ImageConfig, plain, packed(oci.ImageTar+"+zstd"))
	r.Push(t, repo, "below", oci.ImageConfig, packed("application/vnd.docker.image.rootfs.diff.tar.gzip"), plain)
	r.Push(t, repo, "docs", oci.ModelConfig, plain, packed("application/vnd.cncf.model.doc.v1.tar+gzip"))
	says := []string{"is compressed, so that no part of it can be read by itself", "compression=uncompressed"}
	wantSaid(t, append(says, "nothing of it can be shown"), "ls", r.Source(repo+":all"))
	wantSaid(t, append(says, "it may hide files of the layers before it"), "ls", r.Source(repo+":above"))
	for _, tag := range []string{"below", "docs"} {
		out, err := said(t, "inspect", r.Source(repo+":"+tag))
		if err == nil || !strings.Contains(out, "left out") {
			t.Errorf("inspect does not name the layer: %v\n%s", err, out)
		}
		if out, _ := said(t, "ls", r.Source(repo+":"+tag)); !strings.Contains(out, "model.bin") {
			t.Errorf("the other layers are not shown:\n%s", out)
		}
	}
}
