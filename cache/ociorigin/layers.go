package ociorigin

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/layout"
)

// List pins the digest that the reference names, and lists the files of the artifact's layers.
func (o *Artifact) List(ctx context.Context) (*cache.Listing, error) {
	m, err := o.resolve(ctx)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", o.source.at(""), o.missing(err))
	}
	f := &files{o: o, listing: o.NewListing(), created: time.Unix(0, 0), hidden: map[string]bool{}, dirs: map[string]bool{}}
	if at, err := time.Parse(time.RFC3339, m.Annotations["org.opencontainers.image.created"]); err == nil {
		f.created = at
	}
	if err := f.addAll(ctx, m.Layers); err != nil {
		return nil, fmt.Errorf("list %s: %w", o.source.at(""), err)
	}
	l := cache.RemoteListing(f.objects)
	l.Problems = append(l.Problems, f.problems...)
	return l, nil
}

// files are those of all layers. They are added from the last layer to the first, so that what is there hides what comes.
type files struct {
	o        *Artifact
	listing  *fetch.Listing
	created  time.Time
	objects  []*layout.Object
	problems []layout.Problem
	hidden   map[string]bool // paths that hide what earlier layers have there: true also the path itself, false only what lies below it
	dirs     map[string]bool // directories of later layers
}

// kind is the way a layer has its files.
type kind int

const (
	raw    kind = iota // it is one
	plain              // a tar
	packed             // a compressed tar, or anything else that is read from its start only
)

// Annotations that name a layer's file, the last also where it is a directory.
const (
	titleORAS  = "org.opencontainers.image.title"
	unpackORAS = "io.deis.oras.content.unpack"
	titlePack  = "org.cncf.model.filepath"
	titleOld   = "org.cnai.model.filepath" // before ModelPack came to the CNCF
)

// kindOf tells the kind of a layer. ORAS gives files the type of a tar, and a title; ModelPack gives tars titles, too.
func kindOf(d *descriptor) kind {
	a := d.Annotations
	if a[titleORAS] != "" && a[unpackORAS] != "true" && a[titlePack] == "" && a[titleOld] == "" {
		return raw
	}
	media, _, _ := strings.Cut(d.MediaType, ";")
	for _, end := range []string{"+gzip", ".gzip", "+zstd", ".zstd", ".gz", "+encrypted", "+squashfs", ".squashfs"} {
		if strings.HasSuffix(media, end) {
			return packed
		}
	}
	if strings.HasSuffix(media, ".tar") || strings.HasSuffix(media, "+tar") || strings.HasSuffix(media, "/x-tar") {
		return plain
	}
	return raw
}

// overlays tells layers of images, whose files replace those of earlier layers.
func overlays(d *descriptor) bool {
	return strings.HasPrefix(d.MediaType, "application/vnd.oci.image.layer.") || strings.HasPrefix(d.MediaType, "application/vnd.docker.image.")
}

// untitled are names of files that have no title, by the media types of ollama and of Docker's models.
func untitled(media string) string {
	media, _, _ = strings.Cut(media, ";")
	for begin, names := range map[string]map[string]string{
		"application/vnd.ollama.image.": {
			"model": "model.gguf", "projector": "projector.gguf", "adapter": "adapter.gguf", "draft": "draft.gguf", "template": "template",
			"system": "system", "params": "params.json", "messages": "messages.json", "license": "license",
		},
		"application/vnd.docker.ai.": {
			"gguf.v3": "model.gguf", "safetensors": "model.safetensors", "mmproj": "mmproj.gguf", "license": "license", "chat.template.jinja": "chat_template.jinja",
		},
	} {
		if rest, ok := strings.CutPrefix(media, begin); ok {
			return names[rest]
		}
	}
	return ""
}

// titles gives the name of each layer that is a file.
func titles(layers []descriptor) []string {
	names, used := make([]string, len(layers)), map[string]int{}
	for i := range layers {
		d := &layers[i]
		for _, key := range []string{titleORAS, titleOld, titlePack} { // the last that is there counts
			if title := d.Annotations[key]; title != "" {
				names[i] = title
			}
		}
		if names[i] != "" {
			continue
		}
		name := untitled(d.MediaType)
		if name == "" {
			names[i] = "sha256-" + d.Digest.Hex
			continue
		}
		if used[name]++; used[name] > 1 {
			end := path.Ext(name)
			name = strings.TrimSuffix(name, end) + "-" + strconv.Itoa(used[name]) + end
		}
		names[i] = name
	}
	return names
}

func (f *files) addAll(ctx context.Context, layers []descriptor) error {
	names := titles(layers)
	for i := len(layers) - 1; i >= 0; i-- {
		d := &layers[i]
		switch kindOf(d) {
		case raw:
			if err := f.addFile(names[i], d); err != nil {
				return err
			}
		case plain:
			if err := f.addTar(ctx, d); err != nil {
				return fmt.Errorf("the layer %s: %w", d.Digest, err)
			}
		case packed:
			why := fmt.Sprintf("the layer (%.100q, %s) is compressed, so that no part of it can be read by itself: push it again uncompressed "+
				"(oras push FILE..., modctl build --raw, kit pack --compression=none, docker buildx build --output type=image,compression=uncompressed,force-compression=true,push=true)",
				d.MediaType, size.Decimal(d.Size))
			for j := range layers[:i] {
				if overlays(d) && kindOf(&layers[j]) != packed {
					return fmt.Errorf("%w: %s, and it may hide files of the layers before it: %s", fs.ErrInvalid, d.Digest, why)
				}
			}
			f.problem(d.Digest.String(), why+": left out")
		}
	}
	if len(f.objects) > 0 {
		return nil
	}
	for _, p := range f.problems {
		return fmt.Errorf("%w: nothing of it can be shown. %s: %s", fs.ErrInvalid, p.Object, strings.TrimSuffix(p.Detail, ": left out"))
	}
	return errNothing
}

func (f *files) problem(object, detail string) {
	f.problems = append(f.problems, layout.Problem{Object: object, Detail: detail})
}

// addFile adds a layer that is a file.
func (f *files) addFile(title string, d *descriptor) error {
	name, why := nameOf(title)
	if why == "" && !f.visible(name) {
		why = "a later layer has the same title, or one below it"
	}
	if why != "" {
		f.problem(fmt.Sprintf("%.200s", cli.Printable(title)), why+": left out")
		return nil
	}
	p := part{digest: d.Digest.String(), size: d.Size, blob: d.Size}
	if err := f.add(name, p, f.created); err != nil {
		return err
	}
	f.hide(name)
	return nil
}

// add lists a file.
func (f *files) add(name string, p part, at time.Time) error {
	obj := &layout.Object{Name: name, Size: p.size, Version: p.version(), ModTime: at, Origin: f.o}
	f.objects = append(f.objects, obj)
	return f.listing.Add(name, obj.Version)
}

// nameOf is the path of a title or a member, or why it has none.
func nameOf(title string) (name, why string) {
	for part := range strings.SplitSeq(title, "/") {
		if part == ".." {
			return "", "the name leaves its directory"
		}
	}
	if strings.ContainsFunc(title, unicode.IsControl) {
		return "", "the name has control characters"
	}
	if name = strings.TrimPrefix(path.Clean("/"+title), "/"); name == "" {
		return "", "the name is empty"
	}
	return name, ""
}

// visible tells whether no later layer hides a path.
func (f *files) visible(name string) bool {
	if f.dirs[name] {
		return false
	}
	for at := name; at != ""; at = strings.TrimSuffix(path.Dir(at), ".") {
		if self, there := f.hidden[at]; there && (self || at != name) {
			return false
		}
	}
	_, there := f.hidden[""]
	return !there
}

// hide hides what earlier layers have at a path, or in its place.
func (f *files) hide(name string) {
	f.hidden[name] = true
	f.addDir(strings.TrimSuffix(path.Dir(name), "."))
}

// addDir hides files that earlier layers have in the place of a directory.
func (f *files) addDir(name string) {
	for ; name != "" && !f.dirs[name]; name = strings.TrimSuffix(path.Dir(name), ".") {
		f.dirs[name] = true
	}
}

// Whiteouts, as image-spec has them (layer.md).
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// archive is the members of one layer.
type archive struct {
	members map[string]member // by path; the last of a name counts
	hides   map[string]bool   // as [files.hidden]
	dirs    []string          // which take the place of files in earlier layers
	links   int               // that are left out
	link    string            // one of them
}

type member struct {
	off, size int64
	at        time.Time
}

// addTar adds the members of a layer.
func (f *files) addTar(ctx context.Context, d *descriptor) error {
	a := &archive{members: map[string]member{}, hides: map[string]bool{}}
	blob := &layout.Object{Name: d.Digest.String(), Size: d.Size, Version: d.Digest.String(), Origin: &ahead{from: f.o}}
	if _, err := layout.WalkTar(ctx, blob, func(h *tar.Header, offset int64) error { return f.take(a, h, offset) }); err != nil {
		return err
	}
	if a.links > 0 {
		f.problem(d.Digest.String(), fmt.Sprintf("%d links, such as %.100q, are left out", a.links, a.link))
	}
	var shown []string
	for name, m := range a.members {
		if !f.visible(name) {
			continue
		}
		shown = append(shown, name)
		if err := f.add(name, part{d.Digest.String(), m.off, m.size, d.Size}, m.at); err != nil {
			return err
		}
	}
	for _, name := range shown {
		f.hide(name)
	}
	for _, name := range a.dirs {
		f.addDir(name)
	}
	for name, self := range a.hides {
		if !f.hidden[name] {
			f.hidden[name] = self
		}
	}
	return nil
}

// take takes one header of a layer.
func (f *files) take(a *archive, h *tar.Header, offset int64) error {
	if err := f.listing.Add(h.Name, ""); err != nil { // also for one that is not shown: an archive has no end otherwise
		return err
	}
	name, why := nameOf(h.Name)
	if h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeXGlobalHeader {
		if why == "" && h.Typeflag == tar.TypeDir {
			delete(a.members, name)
			a.dirs = append(a.dirs, name)
		}
		return nil
	}
	if why != "" {
		f.problem(cli.Printable(h.Name), why+": left out")
		return nil
	}
	dir, base := path.Split(name)
	dir = strings.TrimSuffix(dir, "/")
	if base == opaque {
		if !a.hides[dir] {
			a.hides[dir] = false
		}
		return nil
	}
	if gone, ok := strings.CutPrefix(base, whiteout); ok {
		if strings.Trim(gone, ".") != "" && !strings.HasPrefix(gone, whiteout) { // else it is aufs's own
			a.hides[path.Join(dir, gone)] = true
		}
		return nil
	}
	delete(a.members, name) // as tar itself extracts
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont:
	case tar.TypeLink:
		target, why := nameOf(h.Linkname)
		if m, there := a.members[target]; there && why == "" {
			a.members[name] = m
			return nil
		}
		fallthrough
	default: // a symbolic link, a device
		a.links, a.link, a.hides[name] = a.links+1, cli.Printable(name), true
		return nil
	}
	if layout.IsSparse(h) {
		f.problem(cli.Printable(name), "a sparse file does not lie in the layer as it is: left out")
		a.hides[name] = true
		return nil
	}
	a.members[name] = member{offset, h.Size, h.ModTime}
	return nil
}

// ahead reads a layer through a window that grows while reads follow each other, as they do where members are small.
type ahead struct {
	from   layout.Origin
	window []byte
	at     int64 // where it begins
}

const (
	leastAhead = 64 << 10
	mostAhead  = 8 << 20
)

// ReadAt implements [layout.Origin].
func (a *ahead) ReadAt(ctx context.Context, o *layout.Object, p []byte, off int64) (n int, err error) {
	for n < len(p) && off+int64(n) < o.Size {
		at := off + int64(n)
		if end := a.at + int64(len(a.window)); at < a.at || at >= end {
			want := int64(leastAhead)
			if last := int64(len(a.window)); at >= end && at-end < last {
				want = min(2*last, mostAhead)
			}
			window := make([]byte, min(want, o.Size-at))
			if got, err := a.from.ReadAt(ctx, o, window, at); got < len(window) {
				if err == nil || errors.Is(err, io.EOF) { // which would be the archive's end
					err = io.ErrUnexpectedEOF
				}
				return n, err
			}
			a.window, a.at = window, at
		}
		n += copy(p[n:], a.window[at-a.at:])
	}
	if n < len(p) {
		err = io.EOF
	}
	return n, err
}
