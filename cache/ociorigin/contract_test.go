package ociorigin

import (
	"path"
	"testing"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/oci"
)

func open(t testing.TB, source string, opt fetch.Options) *Artifact {
	t.Helper()
	s, err := Parse(source)
	blackbox.Must(t, err)
	return Open(s, opt)
}

// alone takes the logins of this machine away from a test.
func alone(t testing.TB) {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	for _, name := range []string{authFile, "DOCKER_CONFIG", "DOCKER_AUTH_CONFIG", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"} {
		t.Setenv(name, "")
	}
}

// TestLayersKeepTheContract has an artifact of raw layers, one for each file, behind a storage; an image whose layers are tars with changes and
// whiteouts; and a ModelPack with one tar.
func TestLayersKeepTheContract(t *testing.T) {
	alone(t)
	names := []string{"with space", "ümlaut", "semi;colon", "q?x=1", "hash#1", "plus+and&", "100%", "a%2Fb", "star*(1)'!"}
	fixture := func(t *testing.T, redirects bool, put func(r *oci.Registry, name string, data []byte, removed bool)) origintest.Fixture {
		r := oci.New(t)
		r.Set(func() { r.Redirects = redirects })
		return origintest.Fixture{
			Keeps: true, Names: names,
			Open:   func(t testing.TB) origintest.Subject { return open(t, r.Source("org/model:v1"), fetch.Options{}) },
			Put:    func(_ testing.TB, name string, data []byte) { put(r, name, data, false) },
			Remove: func(_ testing.TB, name string) { put(r, name, nil, true) },
		}
	}
	t.Run("raw", func(t *testing.T) {
		origintest.Run(t, func(t *testing.T) origintest.Fixture {
			layers := map[string]oci.Descriptor{}
			return fixture(t, true, func(r *oci.Registry, name string, data []byte, removed bool) {
				layers[name] = r.Blob(t, "org/model", oci.ModelRaw, data, oci.FilePath, name)
				if removed {
					delete(layers, name)
				}
				var all []oci.Descriptor
				for _, d := range layers {
					all = append(all, d)
				}
				r.Push(t, "org/model", "v1", oci.ModelConfig, all...)
			})
		})
	})
	t.Run("image", func(t *testing.T) {
		origintest.Run(t, func(t *testing.T) origintest.Fixture {
			var layers []oci.Descriptor
			return fixture(t, false, func(r *oci.Registry, name string, data []byte, removed bool) {
				m := oci.Member{Name: name, Data: data}
				if removed {
					m = oci.Member{Name: path.Join(path.Dir(name), ".wh."+path.Base(name))}
				}
				layers = append(layers, r.Blob(t, "org/model", oci.ImageTar, oci.Tar(t, m)))
				r.Push(t, "org/model", "v1", oci.ImageConfig, layers...)
			})
		})
	})
	t.Run("tar", func(t *testing.T) {
		origintest.Run(t, func(t *testing.T) origintest.Fixture {
			files := map[string][]byte{"README": []byte("so that it is never empty")}
			return fixture(t, true, func(r *oci.Registry, name string, data []byte, removed bool) {
				if files[name] = data; removed {
					delete(files, name)
				}
				var members []oci.Member
				for name, data := range files {
					members = append(members, oci.Member{Name: "./" + name, Data: data})
				}
				r.Push(t, "org/model", "v1", oci.ModelConfig, r.Blob(t, "org/model", oci.ModelTar, oci.Tar(t, members...), oci.FilePath, "model"))
			})
		})
	})
}

func object(o *Artifact, version string, size int64) *layout.Object {
	return &layout.Object{Name: "x", Size: size, Version: version, Origin: o}
}
