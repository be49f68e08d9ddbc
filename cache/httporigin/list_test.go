package httporigin

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
)

// answers is a web server that has some files, and answers others by a status.
type answers struct {
	files   map[string]string // by path
	status  map[string]int
	noETag  string
	missing int // the status of what is not there
}

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	text, ok := a.files[name]
	switch status := a.status[name]; {
	case status != 0:
		w.WriteHeader(status)
		return
	case !ok:
		w.WriteHeader(cmp.Or(a.missing, http.StatusNotFound))
		return
	case name != a.noETag:
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, text))
	}
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
}

// list lists a server.
func (a answers) list(t *testing.T, path string) (*cache.Listing, error) {
	t.Helper()
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	o, err := Open(server.URL+"/"+path, fetch.Options{Patience: 300 * time.Millisecond, Stall: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() }) // only idle connections
	return o.List(t.Context())
}

func namesOf(l *cache.Listing) (shown, denied []string) {
	for _, o := range l.Objects {
		shown = append(shown, o.Name)
	}
	for _, d := range l.Denied {
		denied = append(denied, d.Name)
	}
	return shown, denied
}

// problem returns the problems of an object.
func problem(l *cache.Listing, object string) (said string) {
	for _, p := range l.Problems {
		if p.Object == object {
			said += p.Detail + "\n"
		}
	}
	return said
}

// TestFilesThatAreDenied keep their place.
func TestFilesThatAreDenied(t *testing.T) {
	a := answers{
		files: map[string]string{
			"index.json": `{"chunks": [{"filename": "a.bin"}, {"filename": "b.bin"}, {"filename": "sub/c.bin"}, {"filename": "gone.bin"}, {"filename": "sub"}, {"filename": "d.bin"}]}`,
			"d.bin":      "data",
		},
		status: map[string]int{"a.bin": 403, "b.bin": 401, "sub/c.bin": 403, "sub": 403, "gone.bin": 404},
	}
	l, err := a.list(t, "")
	if err != nil {
		t.Fatal(err)
	}
	shown, denied := namesOf(l)
	if want := []string{"d.bin", "index.json"}; !slices.Equal(shown, want) {
		t.Errorf("shown are %q, want %q", shown, want)
	}
	if want := []string{"a.bin", "b.bin", "sub/c.bin"}; !slices.Equal(denied, want) { // "sub" is a directory
		t.Errorf("denied are %q, want %q", denied, want)
	}
	if !slices.ContainsFunc(l.Dirs, func(d cache.DirEntry) bool { return d.Name == "sub" }) {
		t.Error("the directory of a denied file is not listed")
	}
	for object, words := range map[string]string{"a.bin": "EACCES", "b.bin": "401", "sub/c.bin": "403", "gone.bin": "404", "sub": "directory"} {
		if got := problem(l, object); !strings.Contains(got, words) {
			t.Errorf("of %s it is said %q, want %q", object, got, words)
		}
	}
}

// TestServersThatDenyWhatIsMissing has a server answer 403 for missing files, as S3 does where listing is not allowed.
func TestServersThatDenyWhatIsMissing(t *testing.T) {
	a := answers{files: map[string]string{"index.json": `{"chunks": [{"filename": "a.bin"}]}`, "a.bin": "data"}, missing: 403}
	l, err := a.list(t, "")
	if err != nil {
		t.Fatal(err)
	}
	if shown, denied := namesOf(l); !slices.Equal(shown, []string{"a.bin", "index.json"}) || denied != nil || len(l.Problems) > 0 {
		t.Errorf("shown are %q, denied %q, problems %v", shown, denied, l.Problems)
	}
	if _, err := (answers{missing: 403}).list(t, ""); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("nothing may be read: %v", err)
	}
}

// TestModels lists the files that Hugging Face's libraries look for beside the weights, and no index names.
func TestModels(t *testing.T) {
	both := `{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}`
	for name, c := range map[string]struct {
		answers
		want     []string
		denied   []string
		problems map[string]string
	}{
		"shards": {
			answers: answers{files: map[string]string{
				"model.safetensors.index.json": both, "m-1.safetensors": "1", "m-2.safetensors": "2", "config.json": "{}", "generation_config.json": "{}", "tokenizer.json": "{}",
				"tokenizer_config.json": "{}", "special_tokens_map.json": "{}", "vocab.json": "{}", "merges.txt": "", "tokenizer.model": "t", "chat_template.jinja": "{{}}", "unknown.txt": "x",
			}},
			want: []string{"chat_template.jinja", "config.json", "generation_config.json", "m-1.safetensors", "m-2.safetensors", "merges.txt", "model.safetensors.index.json",
				"special_tokens_map.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json"},
		},
		"one file": {
			answers: answers{files: map[string]string{"model.safetensors": "weights", "config.json": "{}", "vocab.txt": "a", "1_Pooling/config.json": "{}", "modules.json": "[]"}},
			want:    []string{"1_Pooling/config.json", "config.json", "model.safetensors", "modules.json", "vocab.txt"},
		},
		"a pipeline": {
			answers: answers{files: map[string]string{
				"model_index.json": `{"_class_name": "P", "_diffusers_version": "0.30", "scheduler": ["diffusers", "S"], "unet": ["diffusers", "U"], "text_encoder": ["transformers", "T"], "tokenizer": ["transformers", "K"],
					"safety_checker": [null, null], "requires_safety_checker": true}`,
				"scheduler/scheduler_config.json": "{}", "unet/config.json": "{}", "unet/diffusion_pytorch_model.safetensors.index.json": both, "unet/m-1.safetensors": "1", "unet/m-2.safetensors": "2",
				"text_encoder/config.json": "{}", "text_encoder/model.safetensors": "w", "tokenizer/vocab.json": "{}", "tokenizer/merges.txt": "", "README.md": "read",
			}},
			want: []string{"README.md", "model_index.json", "scheduler/scheduler_config.json", "text_encoder/config.json", "text_encoder/model.safetensors", "tokenizer/merges.txt", "tokenizer/vocab.json",
				"unet/config.json", "unet/diffusion_pytorch_model.safetensors.index.json", "unet/m-1.safetensors", "unet/m-2.safetensors"},
		},
		"what may not be read, or not be pinned": {
			answers: answers{
				files:  map[string]string{"model.safetensors": "weights", "config.json": "{}", "README.md": "read"},
				status: map[string]int{"tokenizer.json": 403}, noETag: "README.md",
			},
			want:     []string{"config.json", "model.safetensors"},
			denied:   []string{"tokenizer.json"},
			problems: map[string]string{"tokenizer.json": "403", "README.md": "ETag"},
		},
		"a server that denies what is missing": {
			answers:  answers{files: map[string]string{"model.safetensors": "weights", "config.json": "{}"}, missing: 403},
			want:     []string{"config.json", "model.safetensors"},
			problems: map[string]string{"model.safetensors": "403"},
		},
	} {
		l, err := c.list(t, "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if shown, denied := namesOf(l); !slices.Equal(shown, c.want) || !slices.Equal(denied, c.denied) {
			t.Errorf("%s: shown are %q, denied %q, want %q", name, shown, denied, c.want)
		}
		for object, words := range c.problems {
			if got := problem(l, object); !strings.Contains(got, words) {
				t.Errorf("%s: of %s it is said %q, want %q", name, object, got, words)
			}
		}
	}
}

// TestModelsBehindABrokenServer does not take a broken file for a missing one.
func TestModelsBehindABrokenServer(t *testing.T) {
	a := answers{files: map[string]string{"model.safetensors": "weights"}, status: map[string]int{"config.json": 503}}
	if _, err := a.list(t, ""); !errors.Is(err, fetch.ErrUnreachable) {
		t.Errorf("%v", err)
	}
}

// A directory whose address lacks the slash is a file to a server, which redirects, refuses, or knows none of that name.
func TestDirectoryWithoutItsSlash(t *testing.T) {
	for what, handler := range map[string]http.HandlerFunc{
		"redirects": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/pile" {
				http.Redirect(w, r, "/pile/", http.StatusMovedPermanently)
				return
			}
			w.Header().Set("ETag", `"a page"`) // which is no dataset
		},
		"refuses":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"has none":       http.NotFound,
		"has no version": func(http.ResponseWriter, *http.Request) {},
	} {
		server := httptest.NewServer(handler)
		o, err := Open(server.URL+"/pile", fetch.Options{Patience: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		_, err = o.List(t.Context())
		if want := "write its address with a slash at its end: " + server.URL + "/pile/"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a server that %s: %v, want %q", what, err, want)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	}
}
