// Command image makes the container image of hbmfs without a container engine: one layer with the programs and the
// certificates of public authorities, for one or more architectures. The same programs give the same bits.
//
//	image --name ghcr.io/hbmfs/hbmfs:0.2.0 --out image.tar amd64=DIR arm64=DIR      each DIR holds hbmfs and hbmfs-csi
//	image --name registry.example.com/hbmfs:0.2.0 --push amd64=DIR arm64=DIR        with the credentials of docker login
//	image --programs pod --name hbmfs.test/pod:1 --out pod.tar amd64=DIR             of other programs; the last one is started
//
// The file is an OCI layout, which podman, containerd and Docker with containerd's store load. Its manifest.json is for other
// Dockers, which know no index. They get the first architecture under the name, each other one under NAME-ARCH.
// SOURCE_DATE_EPOCH is the time in it.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("image", flag.ExitOnError)
	full := flags.String("name", "", "name and tag of the image")
	out := flags.String("out", "", "file to write")
	programs := flags.String("programs", "hbmfs,hbmfs-csi", "programs of each directory that are in the image; it starts the last one")
	push := flags.Bool("push", false, "push it to the registry of its name")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ref, err := name.NewTag(*full, name.StrictValidation)
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	made := time.Unix(seconds, 0).UTC()
	if flags.NArg() == 0 {
		return errors.New("name an architecture and its programs: amd64=DIR")
	}

	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var old []entry
	for i, arg := range flags.Args() {
		arch, dir, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: want ARCH=DIR", arg)
		}
		image, err := build(dir, arch, ref.TagStr(), strings.Split(*programs, ","), made)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
		tag := ref.String()
		if i > 0 {
			tag += "-" + arch
		}
		e, err := entryOf(image, tag)
		if err != nil {
			return err
		}
		old = append(old, e)
	}
	if *out != "" {
		if err := write(*out, index, ref, old, made); err != nil {
			return err
		}
	}
	if *push {
		return remote.WriteIndex(ref, index, remote.WithAuthFromKeychain(authn.DefaultKeychain))
	}
	return nil
}

// build makes the image of one architecture.
func build(dir, arch, version string, programs []string, made time.Time) (v1.Image, error) {
	content, err := layer(dir, programs, made)
	if err != nil {
		return nil, err
	}
	blob, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
		mutate.Addendum{Layer: blob, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: made}, CreatedBy: "make image"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config.Architecture, config.OS, config.Created = arch, "linux", v1.Time{Time: made}
	// No User: the host mounts filesystems, and the plugin opens sockets that are root's.
	config.Config = v1.Config{
		Entrypoint: programs[len(programs)-1:],
		Env:        []string{"PATH=/usr/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "hbmfs",
			"org.opencontainers.image.description": "CSI driver of hbmfs, and the hbmfs command",
			"org.opencontainers.image.source":      "https://github.com/hbmfs/hbmfs",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     version,
		},
	}
	return mutate.ConfigFile(image, config)
}

// layer is all that is in the image: no shell, no C library, no package manager.
func layer(dir string, programs []string, made time.Time) ([]byte, error) {
	var certificates bytes.Buffer
	for root := range bundle.Roots() {
		if err := pem.Encode(&certificates, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	for _, parent := range []string{"etc/", "etc/ssl/", "etc/ssl/certs/", "usr/", "usr/bin/"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: parent, Mode: 0o755, ModTime: made}); err != nil {
			return nil, err
		}
	}
	if err := add(w, "etc/ssl/certs/ca-certificates.crt", 0o644, certificates.Bytes(), made); err != nil {
		return nil, err
	}
	for _, program := range programs {
		content, err := os.ReadFile(filepath.Join(dir, program))
		if err != nil {
			return nil, err
		}
		if err := add(w, "usr/bin/"+program, 0o755, content, made); err != nil {
			return nil, err
		}
	}
	err := w.Close() // which closes the reader of all
	return all.Bytes(), err
}

func add(w *tar.Writer, name string, mode int64, content []byte, made time.Time) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content)), ModTime: made}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// entry is an image in manifest.json, the form that `docker save` had before OCI layouts.
type entry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func entryOf(image v1.Image, tag string) (entry, error) {
	manifest, err := image.Manifest()
	if err != nil {
		return entry{}, err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	e := entry{Config: blob(manifest.Config.Digest), RepoTags: []string{tag}}
	for _, l := range manifest.Layers {
		e.Layers = append(e.Layers, blob(l.Digest))
	}
	return e, nil
}

// write makes the file that engines load.
func write(path string, index v1.ImageIndex, ref name.Tag, old []entry, made time.Time) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".image-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // of a file that is whole, or of an error that counts more
	files, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// By the first, containerd and podman know the name; by the second, other readers of layouts the tag.
	if err := files.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name": ref.String(), "org.opencontainers.image.ref.name": ref.TagStr(),
	})); err != nil {
		return err
	}
	manifest, err := json.Marshal(old)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), manifest, 0o600); err != nil {
		return err
	}
	return archive(path, dir, made)
}

// archive writes a directory as a tar file, in the order of names.
func archive(path, dir string, made time.Time) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(file)
	err = filepath.WalkDir(dir, func(name string, found fs.DirEntry, err error) error {
		if err != nil || found.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		return add(w, inside, 0o644, content, made)
	})
	return errors.Join(err, w.Close(), file.Close())
}
