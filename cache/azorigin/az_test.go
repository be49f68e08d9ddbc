package azorigin

import (
	"bytes"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/layout"
)

func TestParse(t *testing.T) {
	noEnvironment(t)
	for text, want := range map[string]string{
		"az://account/container": "az://account/container/", "az://account/container/a/b/": "az://account/container/a/b", "az://account/c-1/a%20b?anonymous": "az://account/c-1/a b",
		"az://account/$web": "az://account/$web/",
		"az://devstoreaccount1/c?endpoint=http://127.0.0.1:10000/devstoreaccount1/": "az://devstoreaccount1/c/?endpoint=http://127.0.0.1:10000/devstoreaccount1",
		"abfss://container@account.dfs.core.windows.net/a/b":                        "az://account/container/a/b",
		"abfs://container@account.blob.core.windows.net":                            "az://account/container/",
		"abfs://container@account.dfs.core.chinacloudapi.cn/x":                      "az://account/container/x?endpoint=https://account.blob.core.chinacloudapi.cn",
	} {
		if s, err := Parse(text); err != nil || s.String() != want {
			t.Errorf("%s: %s, %v", text, s, err)
		}
	}
	for text, want := range map[string]string{
		"az:///x": "want az://ACCOUNT/CONTAINER/PREFIX", "az://account": "want az://ACCOUNT/CONTAINER/PREFIX", "az://u@account/c": "want az://ACCOUNT/CONTAINER/PREFIX",
		"az://u:hunter2@account/c": "credentials do not belong in a source", "az://account/c?sv=2021&sig=hunter2": "credentials do not belong in a source",
		"az://account/c?endpoint=http://h/x?sig=hunter2": "credentials do not belong in a source", "az://account/c?endpoint=http://u:hunter2@h/": "and nothing more",
		"az://account/%zz?sig=hunter2": "credentials do not belong in a source", "az://account/c#b": "write the # as %23",
		"az://u:hunter2@account\x7f/c": "cannot be read", "az://account/c?region=hunter2": "there are anonymous and endpoint", "az://account/c?endpoint=h": "want https://HOST", "az://account/c?endpoint=": "has no value",
		"az://account/c?anonymous=maybe": "want true or false", "az://account/c?anonymous=1&anonymous=0": "given twice", "az://account/c?a;b=hunter2": "cannot be read",
		"abfs://account.dfs.core.windows.net/c": "want abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX", "abfs://c@account/x": "want abfss://",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	long := strings.Repeat("k", 1025)
	for _, source := range []Source{
		{Account: "ab", Container: "container"}, {Account: "a-b-c", Container: "container"}, {Account: "account", Container: "UPPER"}, {Account: "account", Container: "a--b"},
		{Account: "account", Container: "-ab"}, {Account: "account", Container: "ab"}, {Account: "account", Container: "container", Prefix: long},
	} {
		if _, err := Open(source, fetch.Options{}); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%.50s: %v", source, err)
		}
	}
}

func TestVersions(t *testing.T) {
	for _, text := range []string{"0x8D1", "md5:00ff00ff 0x8D1", "md5:00ff00ff 0x8D1 in:gzip", "0x8D1 in:gzip"} {
		if v, err := parseVersion(text); err != nil || v.String() != text {
			t.Errorf("%q becomes %q, %v", text, v, err)
		}
	}
	for _, text := range []string{"", "in:gzip", "md5:00", `"etag"`, "ü"} {
		if v, err := parseVersion(text); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q becomes %q, %v", text, v, err)
		}
	}
	version := "md5:25f9e794323b453885f5181f1b624d0b 0x8D1"
	h := layout.VersionHash(version, 9)
	if _, err := h.Write([]byte("123456789")); err != nil {
		t.Fatal(err)
	}
	if err := layout.CheckHash(version, h); err != nil {
		t.Error(err)
	}
	if err := layout.CheckHash("md5:00f9e794323b453885f5181f1b624d0b 0x8D1", h); err == nil {
		t.Error("another checksum fits")
	}
}

// TestStoredInGzip reads an object in this encoding as it is stored, and refuses one that a server encodes by itself.
func TestStoredInGzip(t *testing.T) {
	noEnvironment(t)
	s := newService(t)
	data := origintest.Data(100_000, 1)
	s.put("stored", stored{data: data, encoding: "gzip"})
	s.put("plain", stored{data: data})
	o := openAt(t, s.URL, "&anonymous=true", fetch.Options{})
	l, err := o.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, obj := range l.Objects {
		got := make([]byte, 50_000)
		if n, err := o.ReadAt(t.Context(), obj, got, 1000); err != nil || !bytes.Equal(got[:n], data[1000:51_000]) {
			t.Errorf("%s: %d bytes, %v", obj.Name, n, err)
		}
	}
	s.before = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Encoding", "gzip")
		return false
	}
	if _, err := o.ReadAt(t.Context(), l.Objects[0], make([]byte, 10), 0); l.Objects[0].Name != "plain" || !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("%s, encoded on its way: %v", l.Objects[0].Name, err)
	}
}

// TestDirectoriesAreNoFiles lists the markers that Hadoop's clients, other tools and hierarchical namespaces make of directories.
func TestDirectoriesAreNoFiles(t *testing.T) {
	noEnvironment(t)
	s := newService(t)
	s.put("by-hadoop", stored{folder: true})
	s.put("by-hadoop/shard", stored{data: []byte("data")})
	s.put("by-others/", stored{})
	s.put("by-others/shard", stored{data: []byte("data")})
	s.put("namespace", stored{resource: true})
	s.put("namespace/empty", stored{resource: true, folder: true})
	s.put("namespace/shard", stored{data: []byte("data")})
	for path, want := range map[string][]string{
		"": {"by-hadoop/shard", "by-others/shard", "namespace/shard"}, "namespace": {"shard"}, "namespace/": {"shard"}, "by-hadoop": {"shard"}, "by-others/shard": {"shard"},
	} {
		l, err := openPath(t, s.URL, path, "&anonymous=true", fetch.Options{}).List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, obj := range l.Objects {
			names = append(names, obj.Name)
		}
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("%q lists %q, want %q", path, names, want)
		}
	}
}

// TestOtherBytesOfAnETag has a server answer with another checksum than the one that it listed.
func TestOtherBytesOfAnETag(t *testing.T) {
	noEnvironment(t)
	s := newService(t)
	s.put("shard", stored{data: origintest.Data(1000, 1)})
	o := openAt(t, s.URL, "&anonymous=true", fetch.Options{})
	l, err := o.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.objects["shard"] = stored{data: origintest.Data(1000, 2), etag: s.objects["shard"].etag}
	s.mu.Unlock()
	if _, err := o.ReadAt(t.Context(), l.Objects[0], make([]byte, 10), 0); !errors.Is(err, cache.ErrChanged) {
		t.Error(err)
	}
}

// TestOneObject has the prefix name one object, after which the next daemon of a mount goes on.
func TestOneObject(t *testing.T) {
	noEnvironment(t)
	s := newService(t)
	s.put("a/b/shard", stored{data: []byte("data")})
	o := openPath(t, s.URL, "a/b/shard", "&anonymous=true", fetch.Options{})
	l, err := o.List(t.Context())
	if err != nil || len(l.Objects) != 1 || l.Objects[0].Name != "shard" || o.Dir() != "a/b/" {
		t.Fatalf("%+v, in %q: %v", l, o.Dir(), err)
	}
	next := openPath(t, s.URL, "a/b/shard", "&anonymous=true", fetch.Options{})
	if err := next.SetDir(o.Dir()); err != nil {
		t.Fatal(err)
	}
	if _, err := next.ReadAt(t.Context(), l.Objects[0], make([]byte, 4), 0); err != nil {
		t.Error(err)
	}
}

// TestErrors has the service refuse. What users see names the cause and what helps.
func TestErrors(t *testing.T) {
	noEnvironment(t)
	s := newService(t)
	s.put("shard", stored{data: origintest.Data(1000, 1)})
	for name, c := range map[string]struct {
		status        int
		code, message string
		is            error
		wants         []string
	}{
		"archive":       {409, "BlobArchived", "This operation is not permitted on an archived blob.", fs.ErrInvalid, []string{"Archive tier", "rehydrate it first"}},
		"rehydrating":   {409, "BlobBeingRehydrated", "This operation is not permitted because the blob is being rehydrated.", fs.ErrInvalid, []string{"rehydrate"}},
		"replaced":      {412, "ConditionNotMet", "The condition is not met.", cache.ErrChanged, []string{"it was replaced"}},
		"no container":  {404, "ContainerNotFound", "The specified container does not exist.", fs.ErrNotExist, []string{`container "container" (404 Not Found, ContainerNotFound`, "no such container"}},
		"gone":          {404, "BlobNotFound", "The specified blob does not exist.", cache.ErrChanged, []string{"it is gone"}},
		"private":       {409, "PublicAccessNotPermitted", "Public access is not permitted on this storage account.", fs.ErrPermission, []string{"requests carry no credentials", "az login"}},
		"stranger":      {404, "ResourceNotFound", "The specified resource does not exist.", fs.ErrPermission, []string{"or there is no container", "az login"}},
		"forbidden":     {403, "AuthorizationPermissionMismatch", "This request is not authorized to perform this operation using this permission.", fs.ErrPermission, []string{"permission"}},
		"firewall":      {403, "AuthorizationFailure", "This request is not authorized to perform this operation.", fs.ErrPermission, nil},
		"bad":           {400, "InvalidHeaderValue", "The value \u009b for one of the headers is not in the correct format.", fs.ErrInvalid, []string{"check account, container and endpoint"}},
		"a redirect":    {307, "", "", fs.ErrInvalid, []string{"sends its clients elsewhere", "check the endpoint"}},
		"busy":          {503, "ServerBusy", "The server is busy.", fetch.ErrUnreachable, []string{"503 Service Unavailable, ServerBusy: The server is busy."}},
		"too many":      {429, "TooManyRequests", "Slow down.", fetch.ErrUnreachable, []string{"429"}},
		"out of order":  {500, "InternalError", "The server encountered an internal error.", fetch.ErrUnreachable, []string{"500"}},
		"no text":       {403, "", "", fs.ErrPermission, []string{"403 Forbidden"}},
		"being changed": {409, "LeaseAlreadyPresent", "There is already a lease.", fetch.ErrUnreachable, []string{"409"}},
	} {
		s.before = nil
		o := openAt(t, s.URL, "&anonymous=true", fetch.Options{Patience: 300 * time.Millisecond, Stall: time.Minute})
		l, err := o.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.before = func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Location", "http://elsewhere/")
			if c.code == "" {
				w.WriteHeader(c.status)
			} else {
				refuse(w, c.status, c.code, c.message)
			}
			return true
		}
		_, err = o.ReadAt(t.Context(), l.Objects[0], make([]byte, 10), 0)
		t.Logf("%s: %v", name, err)
		if !errors.Is(err, c.is) || strings.Contains(err.Error(), "RequestId") || strings.ContainsAny(err.Error(), "\u009b\n") {
			t.Errorf("%s: %v, want %v", name, err, c.is)
		}
		for _, want := range c.wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
}
