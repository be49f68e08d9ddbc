package layout

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
)

// tarHead names the program that compressed an archive, "" where none did.
type tarHead struct{ compressed string }

func webdatasetProbe(o *Object, head []byte) any {
	switch {
	case isTarHeader(head):
		return tarHead{}
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(bytes.NewReader(head))
		if err != nil {
			return nil
		}
		var block [tarBlock]byte
		if _, err := io.ReadFull(z, block[:]); err == nil && isTarHeader(block[:]) {
			return tarHead{"gzip"}
		}
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// A zstd block can be longer than the head, which then cannot be decoded: the name must do beside the magic.
		if strings.HasSuffix(o.Name, ".tar.zst") || strings.HasSuffix(o.Name, ".tzst") {
			return tarHead{"zstd"}
		}
	}
	return nil
}

const tarBlock = 512

// isTarHeader reports whether p begins with a header of POSIX or GNU tar: the magic and the right checksum
// (POSIX.1-2017, pax, "ustar Interchange Format").
func isTarHeader(p []byte) bool {
	if len(p) < tarBlock || string(p[257:262]) != "ustar" {
		return false
	}
	const at, width = 148, 8 // of the checksum, which counts as spaces
	want, err := strconv.ParseUint(string(bytes.Trim(p[at:at+width], " \x00")), 8, 32)
	if err != nil {
		return false
	}
	sum := uint64(width * ' ')
	for i, c := range p[:tarBlock] {
		if i < at || i >= at+width {
			sum += uint64(c)
		}
	}
	return sum == want
}

// webdatasetAssemble makes a set of each split's archives. Nothing of them is read: the members are listed when
// somebody looks into the view, and counted when the set is checked.
func webdatasetAssemble(_ context.Context, d *directory, members []member) {
	for split, group := range bySplit(members) {
		var shards []*Shard
		var plain []*Shard
		compressed := map[string]int{}
		left := newPieces()
		for _, m := range group {
			h := newShard(m.object)
			shards = append(shards, h)
			if by := m.head.(tarHead).compressed; by != "" {
				compressed[by]++
				continue
			}
			plain = append(plain, h)
			h.check = func(ctx context.Context, h *Shard) error { return checkTar(ctx, d, h) }
			h.findFields = func(ctx context.Context, h *Shard) (*fieldsOf, error) {
				return findTarFields(ctx, h.Objects[0], left)
			}
		}
		set := d.add(split, DTypeUnknown, shards)
		for _, by := range []string{"gzip", "zstd"} {
			if n := compressed[by]; n > 0 {
				set.note(fmt.Sprintf("%d archives are compressed by %s: their members lie nowhere as they are and are not shown, decompress the archives", n, by))
				set.noFields = fmt.Sprintf("archives are compressed by %s: their samples lie nowhere as they are, decompress the archives", by)
			}
		}
		set.entries = func(*Set) []View { return tarViews(plain) }
	}
}

// tarViews is a directory for each archive.
func tarViews(shards []*Shard) []View {
	var out []View
	for _, h := range shards {
		o := h.Objects[0]
		out = append(out, View{
			Path: path.Join("members", baseOf(o.Name)),
			Entries: func(ctx context.Context) ([]*File, error) {
				listing, err := listTar(ctx, o)
				if err != nil {
					return nil, err
				}
				return listing.files(o), nil
			},
		})
	}
	return out
}

// checkTar lists the archive, reports members that its view does not show, and counts the samples.
func checkTar(ctx context.Context, d *directory, h *Shard) error {
	o := h.Objects[0]
	listing, err := listTar(ctx, o)
	if err != nil {
		return err
	}
	h.Samples = listing.samples
	for _, s := range listing.skipped {
		d.problem(o, s.at, "%d members are not shown: %s (%.80q first)", s.count, s.why, s.name)
	}
	if !listing.ended {
		d.problem(o, o.Size, "the archive ends without two blocks of zeros: members may be missing")
	}
	if listing.after > 0 {
		d.problem(o, listing.after, "bytes follow the end of the archive, and no reader sees them: if they are another archive, store it as a file of its own")
	}
	return nil
}
