package azure_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/cache/azorigin"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

func TestAzuriteKeepsTheContract(t *testing.T) {
	needAzurite(t)
	origintest.Run(t, func(t *testing.T) origintest.Fixture {
		container := azure.container(t)
		return origintest.Fixture{
			Names: []string{"with space", "ümlaut", "semi;colon", "q?x=1", "hash#1", "plus+and&", "100%", "star*(1)'!", "a<b"},
			Open: func(t testing.TB) origintest.Subject {
				s, err := azorigin.Parse(sourceOf(container))
				must(t, err)
				o, err := azorigin.Open(s, fetch.Options{})
				must(t, err)
				return o
			},
			Put:    func(t testing.TB, name string, data []byte) { azure.put(t, container, name, data) },
			Remove: func(t testing.TB, name string) { azure.remove(t, container, name) },
		}
	})
}

// TestMountedContainer mounts a dataset: files, views, markers of directories, and what commands say of them.
func TestMountedContainer(t *testing.T) {
	needAzurite(t)
	blackbox.NeedFUSE(t)
	container := azure.container(t)
	dir := mounttest.Golden(t, "npy")
	files := map[string][]byte{}
	must(t, fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files[name], err = os.ReadFile(filepath.Join(dir, name))
			azure.put(t, container, "data/"+name, files[name])
		}
		return err
	}))
	azure.put(t, container, "data", nil, "X-Ms-Meta-Hdi_isfolder", "true")
	azure.put(t, container, "data/deep", nil, "X-Ms-Meta-Hdi_isfolder", "true")
	azure.put(t, container, "data/deep/notes.txt.gz", []byte("notes"), "X-Ms-Blob-Content-Encoding", "gzip")
	files["deep/notes.txt.gz"] = []byte("notes")
	source, cached := sourceOf(container+"/data"), suite.NewDir(t)
	m := mount(t, source, "--cache-dir", cached, "--cache-segment=1MiB")
	for name, data := range files {
		if err := mounttest.CompareFile(m.Path(name), data); err != nil {
			t.Error(err)
		}
	}
	if views, err := os.ReadDir(m.Path(".hbmfs", "views")); err != nil || len(views) == 0 {
		t.Errorf("%d views, %v", len(views), err)
	}
	if got := m.Status(t).Source; got != source {
		t.Errorf("the source in status is %q", got)
	}
	for _, args := range [][]string{{"ls", source}, {"inspect", "--verify", source}, {"cache", "verify", cached}, {"inspect", sourceOf(container + "/data/deep/notes.txt.gz")}} {
		if out, err := said(t, args...); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// TestReplacedUnderAMount replaces and removes objects that a mount shows, and moves one to the Archive tier.
func TestReplacedUnderAMount(t *testing.T) {
	needAzurite(t)
	blackbox.NeedFUSE(t)
	container := azure.container(t)
	for _, name := range []string{"replaced", "removed", "kept", "archived"} {
		azure.put(t, container, name, origintest.Data(1<<20, 1))
	}
	m := mount(t, sourceOf(container))
	azure.put(t, container, "replaced", origintest.Data(1<<20, 2))
	azure.remove(t, container, "removed")
	azure.ask(t, http.MethodPut, pathOf(container, "archived"), "comp=tier", nil, "X-Ms-Access-Tier", "Archive")
	for name, want := range map[string]error{"replaced": syscall.ESTALE, "removed": syscall.ESTALE, "archived": syscall.EIO, "kept": nil} {
		if _, err := os.ReadFile(m.Path(name)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	log := m.LogText(t)
	for _, want := range []string{"changed since the dataset was mounted: mount it again", "it is in the Archive tier", "rehydrate it first"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
	}
}

// TestWhatUsersSee has mounts fail. Each error names its cause and what helps, and no secret.
func TestWhatUsersSee(t *testing.T) {
	needAzurite(t)
	blackbox.NeedFUSE(t)
	container, p := azure.container(t), newProxy(t)
	azure.put(t, container, "shard", origintest.Data(1000, 1))
	wrong := "c2VjcmV0LW9mLW5vYm9keQ=="
	p.do(func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, azure.url+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	})
	for name, c := range map[string]struct {
		source string
		env    []string
		wants  []string
	}{
		"wrong key":      {sourceOf(container), []string{"AZURE_STORAGE_KEY=" + wrong}, []string{"403 Forbidden, AuthorizationFailure", "check the account's key (AZURE_STORAGE_KEY)", "clock"}},
		"no credentials": {sourceOf(container), []string{"AZURE_STORAGE_KEY=", "AZURE_TOKEN_CREDENTIALS=AzureCLICredential", "PATH="}, []string{"AZURE_TOKEN_CREDENTIALS"}},
		"anonymous":      {sourceOf(container) + "&anonymous=true", nil, []string{"requests carry no credentials", "az login"}},
		"no container":   {sourceOf("nowhere"), nil, []string{`container "nowhere" (404 Not Found, ContainerNotFound`, "there is no such container"}},
		"no object":      {sourceOf(container + "/nothing"), nil, []string{"no object is there"}},
		"a redirect":     {p.source(container), nil, []string{"the server sends its clients elsewhere (307 Temporary Redirect)", "check the endpoint"}},
		"a secret in it": {"az://account/container?sv=1&sig=" + wrong, nil, []string{"credentials do not belong in a source"}},
	} {
		cmd := suite.Command(t.Context(), "mount", "-f", c.source, suite.NewDir(t))
		cmd.Env = append(os.Environ(), c.env...)
		out, err := cmd.CombinedOutput()
		t.Logf("%s: exit code %d\n%s", name, cmd.ProcessState.ExitCode(), out)
		if err == nil || strings.Contains(string(out), wrong) || strings.Contains(string(out), key) {
			t.Errorf("%s: %v, or a secret is shown", name, err)
		}
		for _, want := range c.wants {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: it does not say %q", name, want)
			}
		}
	}
}

// TestStorms has the service refuse two of three requests, as it does to accounts above their limits. Readers see none of it.
func TestStorms(t *testing.T) {
	needAzurite(t)
	blackbox.NeedFUSE(t)
	container, p := azure.container(t), newProxy(t)
	data := origintest.Data(8<<20, 1)
	azure.put(t, container, "shard", data)
	var asked, refused atomic.Int64
	p.do(func(w http.ResponseWriter, _ *http.Request) bool {
		n := asked.Add(1)
		if n%3 == 0 {
			return false
		}
		refused.Add(1)
		status := []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusInternalServerError}[n%3]
		w.Header().Set("X-Ms-Error-Code", "ServerBusy")
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, "<Error><Code>ServerBusy</Code><Message>Egress is over the account limit.</Message></Error>") // they may have hung up
		return true
	})
	m := mount(t, p.source(container), "--cache-dir", suite.NewDir(t), "--cache-segment=1MiB")
	if err := mounttest.CompareFile(m.Path("shard"), data); err != nil {
		t.Errorf("%v\nlog:\n%s", err, m.LogText(t))
	}
	if refused.Load() == 0 {
		t.Error("nothing was refused")
	}
	t.Logf("log:\n%s", m.LogText(t))
}

// TestSignatures mounts with a shared access signature that the service checks, and with one whose time is over.
func TestSignatures(t *testing.T) {
	needAzurite(t)
	container := azure.container(t)
	azure.put(t, container, "shard", origintest.Data(1000, 1))
	good := sasOf(t, container, "2099-01-01T00:00:00Z")
	for name, c := range map[string]struct {
		sas, want string
		works     bool
	}{
		"good":  {good, "shard", true},
		"ended": {sasOf(t, container, "2020-01-02T00:00:00Z"), "must be in its time", false},
		"wrong": {strings.Replace(good, "sig=", "sig=AA", 1), "must be in its time", false},
	} {
		file := filepath.Join(suite.NewDir(t), "connection")
		must(t, os.WriteFile(file, []byte("SharedAccessSignature="+c.sas+"\n"), 0o600))
		cmd := suite.Command(t.Context(), "ls", sourceOf(container))
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AZURE_") }), "AZURE_STORAGE_CONNECTION_STRING_FILE="+file)
		out, err := cmd.CombinedOutput()
		t.Logf("%s:\n%s", name, out)
		_, sig, _ := strings.Cut(c.sas, "sig=")
		if (err == nil) != c.works || !strings.Contains(string(out), c.want) || strings.Contains(string(out), sig) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
