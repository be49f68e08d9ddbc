package deploy_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// member is a file of a tar archive.
type member struct {
	header  tar.Header
	content []byte
}

// unpack returns the files of a tar archive by name.
func unpack(t *testing.T, r io.Reader) map[string]member {
	t.Helper()
	all := map[string]member{}
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		all[header.Name] = member{*header, content}
	}
}

// descriptor is the part of an OCI index, manifest and configuration that these tests read.
type descriptor struct {
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
	Platform    struct {
		Architecture string `json:"architecture"`
	} `json:"platform"`
	Manifests []descriptor `json:"manifests"`
	Layers    []descriptor `json:"layers"`
	Config    struct {
		Digest     string   `json:"digest"`
		Entrypoint []string `json:"Entrypoint"`
		User       string   `json:"User"`
	} `json:"config"`
}

// layout is an OCI layout, and follow the documents in it.
type layout map[string]member

func (l layout) read(t *testing.T, name string, into any) {
	t.Helper()
	if err := json.Unmarshal(l[name].content, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func blob(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

// images returns the name of the image in a layout, and its images by architecture.
func (l layout) images(t *testing.T) (name string, found map[string]descriptor) {
	t.Helper()
	var top, index descriptor
	l.read(t, "index.json", &top)
	if len(top.Manifests) != 1 {
		t.Fatalf("%d indexes", len(top.Manifests))
	}
	l.read(t, blob(top.Manifests[0].Digest), &index)
	found = map[string]descriptor{}
	for _, m := range index.Manifests {
		var manifest descriptor
		l.read(t, blob(m.Digest), &manifest)
		found[m.Platform.Architecture] = manifest
	}
	return top.Manifests[0].Annotations["io.containerd.image.name"], found
}

// The image has the two programs and certificates, needs nothing else, and is what every engine loads.
func TestImage(t *testing.T) {
	file, err := os.Open(given(t, "HBMFS_IMAGE"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // it was only read
	image := layout(unpack(t, file))
	name, images := image.images(t)
	manifest, ok := images[runtime.GOARCH]
	if !ok || len(manifest.Layers) != 1 {
		t.Fatalf("no image of one layer for %s: %v", runtime.GOARCH, images)
	}
	var config descriptor
	image.read(t, blob(manifest.Config.Digest), &config)
	if !slices.Equal(config.Config.Entrypoint, []string{"hbmfs-csi"}) || config.Config.User != "" {
		t.Errorf("it starts %q as %q", config.Config.Entrypoint, config.Config.User)
	}
	var old []struct {
		RepoTags, Layers []string
	}
	image.read(t, "manifest.json", &old)
	if len(old) != len(images) || old[0].RepoTags[0] != name || old[0].Layers[0] != blob(manifest.Layers[0].Digest) {
		t.Errorf("manifest.json has %v, and the layout %s of %v", old, name, images)
	}

	content, err := gzip.NewReader(bytes.NewReader(image[blob(manifest.Layers[0].Digest)].content))
	if err != nil {
		t.Fatal(err)
	}
	layer := unpack(t, content)
	want := []string{"etc/", "etc/ssl/", "etc/ssl/certs/", "etc/ssl/certs/ca-certificates.crt", "usr/", "usr/bin/", "usr/bin/hbmfs", "usr/bin/hbmfs-csi"}
	if have := slices.Sorted(maps.Keys(layer)); !slices.Equal(have, want) {
		t.Errorf("the layer has %q", have)
	}
	if have := bytes.Count(layer["etc/ssl/certs/ca-certificates.crt"].content, []byte("BEGIN CERTIFICATE")); have < 50 {
		t.Errorf("%d certificates", have)
	}
	for _, program := range []string{"hbmfs", "hbmfs-csi"} {
		m := layer["usr/bin/"+program]
		path := filepath.Join(t.TempDir(), program)
		if err := os.WriteFile(path, m.content, m.header.FileInfo().Mode()); err != nil {
			t.Fatal(err)
		}
		_, tag, _ := strings.Cut(name, ":")
		if said := output(t, true, path, "--version"); !strings.HasSuffix(strings.ReplaceAll(said, "+", "-"), " v"+tag+"\n") {
			t.Errorf("%s --version in %s: %s", program, name, said)
		}
		if needs := interpreter(t, path); needs != "" {
			t.Errorf("%s needs %s, which is not in the image", program, needs)
		}
	}
}
