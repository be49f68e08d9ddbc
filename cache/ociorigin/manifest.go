package ociorigin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// Bounds of manifests. Registries take those of at most 4 MiB.
const (
	mostManifest = 4 << 20 // bytes
	mostEntries  = 10_000  // layers, or manifests of an index
	mostLooked   = 16      // manifests and indexes that are read to find the one for a platform
)

// manifest is a manifest or an index: its kind follows from the list that it has.
type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	Layers        bounded           `json:"layers"`
	Manifests     bounded           `json:"manifests"`
	Annotations   map[string]string `json:"annotations"`
}

// descriptor names a blob or a manifest.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      v1.Hash           `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations"`
	Platform    *v1.Platform      `json:"platform"`
}

// bounded is a list that is never longer than a manifest may have: a few bytes of JSON become hundreds in memory.
type bounded []descriptor

// UnmarshalJSON implements [json.Unmarshaler].
func (b *bounded) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if open, err := d.Token(); err != nil || open != json.Delim('[') {
		return fmt.Errorf("%w: it has %.20q where a list belongs", fs.ErrInvalid, text)
	}
	for d.More() {
		var one descriptor
		if err := d.Decode(&one); err != nil {
			return err
		}
		if len(*b) == mostEntries {
			return fmt.Errorf("%w: it has more than %d layers or manifests", fs.ErrInvalid, mostEntries)
		}
		if one.Digest.Hex == "" || one.Size < 0 {
			return fmt.Errorf("%w: it has a layer or manifest of %d bytes without a digest, or of a size that cannot be", fs.ErrInvalid, one.Size)
		}
		*b = append(*b, one)
	}
	return nil
}

// parseManifest reads a manifest or an index.
func parseManifest(text []byte) (*manifest, error) {
	m := &manifest{}
	if err := json.Unmarshal(text, m); err != nil {
		if errors.Is(err, fs.ErrInvalid) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: it cannot be read: %s", fs.ErrInvalid, fetch.Said(err.Error()))
	}
	switch {
	case len(m.Layers) > 0 && len(m.Manifests) > 0:
		return nil, fmt.Errorf("%w: it is an index and a manifest at once", fs.ErrInvalid)
	case m.SchemaVersion == 1:
		return nil, fmt.Errorf("%w: it is of Docker's schema 1, which no longer counts: push it again", fs.ErrInvalid)
	case m.SchemaVersion != 2:
		return nil, fmt.Errorf("%w: it is no manifest of an artifact or image", fs.ErrInvalid)
	}
	return m, nil
}

// manifest asks for a manifest by a tag or digest, and compares it with its digest.
func (o *Artifact) manifest(ctx context.Context, reference string) (m *manifest, digest string, err error) {
	accept := []string{string(types.OCIImageIndex), string(types.OCIManifestSchema1), string(types.DockerManifestList), string(types.DockerManifestSchema2)}
	var text []byte
	var said string
	err = o.Retry(ctx, func(ctx context.Context, _ func()) error {
		res, _, err := o.registry.follow(ctx, "manifests/"+reference, http.Header{"Accept": {strings.Join(accept, ",")}})
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }() // it is read
		said = res.Header.Get("Docker-Content-Digest")
		text, err = read(res, mostManifest)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(text)
	digest = "sha256:" + hex.EncodeToString(sum[:])
	if strings.HasPrefix(reference, "sha256:") {
		said = reference
	}
	if said != "" && said != digest {
		return nil, "", fmt.Errorf("%w: the manifest that the registry gives for %.80q has the digest %s", fs.ErrInvalid, said, digest)
	}
	if m, err = parseManifest(text); err != nil {
		return nil, "", fmt.Errorf("the manifest %s: %w", digest, err)
	}
	return m, digest, nil
}

// resolve pins the digest that the source names, and finds the manifest of the platform.
func (o *Artifact) resolve(ctx context.Context) (*manifest, error) {
	m, digest, err := o.manifest(ctx, o.source.Reference.Identifier())
	if err != nil {
		return nil, err
	}
	o.digest = digest
	s := search{o: o, left: mostLooked}
	found, err := s.find(ctx, m)
	if err == nil && found == nil {
		slices.Sort(s.others)
		err = fmt.Errorf("the index has nothing for the platform %s: %w. It has %s: name one, ?platform=OS/ARCHITECTURE",
			o.source.Platform.String(), fs.ErrNotExist, cli.Printable(strings.Join(slices.Compact(s.others), ", ")))
	}
	return found, err
}

// search looks for the manifest of a platform.
type search struct {
	o      *Artifact
	left   int      // manifests that may be read
	others []string // platforms that an index has
}

// find returns a manifest, or the one of an index that is for the platform; nil for none. A manifest without a platform is for each, where it is the
// only one.
func (s *search) find(ctx context.Context, m *manifest) (*manifest, error) {
	if len(m.Manifests) == 0 {
		return m, nil
	}
	var indexes, plain []descriptor
	for _, d := range m.Manifests {
		switch {
		case types.MediaType(d.MediaType).IsIndex():
			indexes = append(indexes, d)
		case d.Platform == nil:
			plain = append(plain, d)
		case d.Platform.Satisfies(s.o.source.Platform):
			found, err := s.get(ctx, d)
			if err == nil && len(found.Manifests) > 0 {
				err = fmt.Errorf("%w: the index calls %s a manifest, and it is an index", fs.ErrInvalid, d.Digest)
			}
			return found, err
		default:
			s.others = append(s.others, d.Platform.String())
		}
	}
	if len(plain) == 1 && len(s.others) == 0 {
		indexes = append(indexes, plain...)
	} else if len(plain) > 0 {
		s.others = append(s.others, fmt.Sprintf("%d without a platform (name one by @DIGEST)", len(plain)))
	}
	for _, d := range indexes {
		below, err := s.get(ctx, d)
		if err != nil {
			return nil, err
		}
		if found, err := s.find(ctx, below); err != nil || found != nil {
			return found, err
		}
	}
	return nil, nil
}

func (s *search) get(ctx context.Context, d descriptor) (*manifest, error) {
	if s.left--; s.left < 0 {
		return nil, fmt.Errorf("%w: more than %d manifests would have to be read to find the platform: name the manifest by @DIGEST", fs.ErrInvalid, mostLooked)
	}
	m, _, err := s.o.manifest(ctx, d.Digest.String())
	return m, err
}

// missing says which reference the registry does not have.
func (o *Artifact) missing(err error) error {
	if !errors.Is(err, fs.ErrNotExist) || o.digest != "" {
		return err
	}
	kind := "manifest"
	if _, tag := o.source.Reference.(name.Tag); tag {
		kind = "tag"
	}
	return fmt.Errorf("there is no %s %q: %w", kind, o.source.Reference.Identifier(), err)
}

var errNothing = fmt.Errorf("it has no files: %w", fs.ErrNotExist)
