package fs

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// node is a file or directory of the mount. Its number in the tree, plus one, is its FUSE node id for as long as the
// mount lives. All fields are set before the node is published, but for those that a lazy part fills in under its lock.
type node struct {
	name    string
	kind    kind
	perm    uint16
	hidden  bool // found by name, but not listed
	uid     uint32
	gid     uint32
	ino     uint64
	modTime time.Time

	object *layout.Object // kindObject
	view   *lazyView      // kindView
	text   func() []byte  // kindText
	target string         // kindLink
	dir    *directory     // kindDir
}

type kind uint8

const (
	kindDir    kind = iota
	kindObject      // a file of the origin, as it is
	kindView        // a file made of extents, built when it is first looked at
	kindText        // a few lines of this process, made anew at each open
	kindLink
	kindSocket // the control socket, once it is bound
	kindDenied // a file that the origin has and does not give
)

// directory is a node's children: consecutive numbers, ordered by name.
type directory struct {
	number       int // the directory's own
	first, count int

	// expand, if set, makes the entries when the directory is first looked into.
	expand   func(context.Context) ([]entry, error)
	expanded once
	grown    grown // its grown nodes
}

// entry is a node with the slash-separated path at which it is to appear.
type entry struct {
	path string
	node *node
}

// tree holds the nodes. It only grows. After a hand-over it has numbers that an earlier daemon gave to nodes of directories that are
// filled when they are looked into. Their nodes are nil until then.
type tree struct {
	mu       sync.RWMutex
	nodes    []*node
	base     int     // nodes of the source, which are there from the beginning
	reserved []grown // ordered by first
}

// grown are the nodes that fill a directory: of consecutive numbers.
type grown struct {
	dir, first, count int
	sum               uint64 // of the nodes
}

// reserve keeps numbers for the nodes of a directory that an earlier daemon has filled.
func (t *tree) reserve(g grown) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if end := g.first + g.count; end > len(t.nodes) {
		t.nodes = append(t.nodes, make([]*node, end-len(t.nodes))...)
	}
	i, _ := slices.BinarySearchFunc(t.reserved, g, func(a, b grown) int { return a.first - b.first })
	t.reserved = slices.Insert(t.reserved, i, g)
}

// at is get. Where a node is not known yet, it returns the number of its directory, else -1.
func (t *tree) at(number int) (n *node, dir int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if number < 0 || number >= len(t.nodes) {
		return nil, -1
	}
	if n = t.nodes[number]; n == nil {
		i := sort.Search(len(t.reserved), func(i int) bool { return t.reserved[i].first > number }) - 1
		if i >= 0 && number < t.reserved[i].first+t.reserved[i].count {
			return nil, t.reserved[i].dir
		}
	}
	return n, -1
}

const rootNumber = 0

// newTree returns a tree with a root directory of the given entries.
func newTree(root node, entries []entry) *tree {
	root.kind, root.ino, root.dir = kindDir, 1, &directory{}
	sortEntries(entries)
	nodes := growSorted([]*node{&root}, 0, &root, entries, 0)
	return &tree{nodes: nodes, base: len(nodes)}
}

func sortEntries(entries []entry) {
	slices.SortStableFunc(entries, func(a, b entry) int { return layout.ComparePaths(a.path, b.path) })
}

// get returns a node by its number.
func (t *tree) get(number int) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if number < 0 || number >= len(t.nodes) {
		return nil
	}
	return t.nodes[number]
}

// find returns the child with the given name and its number, or nil. Children that were cleared meanwhile are not found.
func (t *tree) find(d *directory, name string) (*node, int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	nodes := t.nodes[d.first : d.first+d.count]
	i := sort.Search(len(nodes), func(i int) bool { return nodes[i] != nil && nodes[i].name >= name })
	if i == len(nodes) || nodes[i].name != name {
		return nil, 0
	}
	return nodes[i], d.first + i
}

// grow puts entries below dir, which has none yet. Directories that no entry describes are made up from the first
// entry in them. Of two entries with one path the first one wins. Where an earlier daemon has filled dir, its nodes get their numbers
// again: known is true then, and other nodes than then are [cache.ErrChanged].
func (t *tree) grow(dir *node, entries []entry) (g grown, known bool, err error) {
	sortEntries(entries)
	t.mu.Lock()
	defer t.mu.Unlock()
	g = grown{dir: dir.dir.number, first: len(t.nodes)}
	i := slices.IndexFunc(t.reserved, func(r grown) bool { return r.dir == g.dir })
	if i >= 0 {
		g.first = t.reserved[i].first
	}
	nodes := growSorted(nil, g.first, dir, entries, 0)
	g.count, g.sum = len(nodes), sumOf(nodes)
	switch {
	case i < 0:
		t.nodes = append(t.nodes, nodes...)
	case g != t.reserved[i]:
		dir.dir.first, dir.dir.count = 0, 0
		return g, true, fmt.Errorf("%q is not what it was before the daemon was replaced: %w", dir.name, cache.ErrChanged)
	default:
		for k, n := range nodes {
			if t.nodes[g.first+k] == nil { // else it was set, and the kernel's answers about it are true
				t.nodes[g.first+k] = n
			}
		}
	}
	return g, i >= 0, nil
}

// set gives a reserved number its node before its directory is filled.
func (t *tree) set(number int, n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if number >= 0 && number < len(t.nodes) && t.nodes[number] == nil {
		t.nodes[number] = n
	}
}

// clear takes nodes away, and all below them.
func (t *tree) clear(g grown) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for more := []grown{g}; len(more) > 0; {
		g, more = more[0], more[1:]
		for i := g.first; i < g.first+g.count && i < len(t.nodes); i++ {
			n := t.nodes[i]
			if n != nil && n.dir != nil && n.dir.expanded.done.Load() {
				more = append(more, n.dir.grown)
			}
			t.nodes[i] = nil
		}
	}
}

// sumOf tells nodes apart by their names, kinds and inode numbers, and views that are built by their bodies.
func sumOf(nodes []*node) uint64 {
	var sum summer
	for _, n := range nodes {
		sum.b = append(append(sum.b, n.name...), 0, byte(n.kind))
		sum.b = binary.LittleEndian.AppendUint64(sum.b, n.ino)
		if n.kind == kindView && n.view.built.done.Load() && n.view.file != nil {
			sum.b = binary.LittleEndian.AppendUint64(sum.b, bodySum(&n.view.file.Body))
		}
		sum.add()
	}
	return sum.of(len(nodes))
}

// bodySum tells bodies apart by their runs.
func bodySum(body *layout.Body) uint64 {
	var sum summer
	var last *layout.Object
	for r := range body.RunsWithin(0, body.Size()) {
		if r.Object != last {
			sum.b, last = append(append(append(sum.b, r.Object.Name...), 0), r.Object.Version...), r.Object
		}
		for _, v := range []int64{r.Object.Size, r.Logical, r.Offset, r.Length, r.Stride, r.Count} {
			sum.b = binary.LittleEndian.AppendUint64(sum.b, uint64(v))
		}
		sum.add()
	}
	return sum.of(body.Runs())
}

// summer is CRC-32C of bytes that come in pieces: a machine instruction, since a tree may have millions of nodes.
type summer struct {
	b   []byte
	sum uint32
}

// add takes the bytes once they are some.
func (s *summer) add() {
	const some = 4096
	if len(s.b) >= some {
		s.flush()
	}
}

func (s *summer) flush() {
	s.sum = crc32.Update(s.sum, crc32.MakeTable(crc32.Castagnoli), s.b)
	s.b = s.b[:0]
}

// of returns the sum, with the number of pieces.
func (s *summer) of(pieces int) uint64 {
	s.flush()
	return uint64(s.sum)<<32 | uint64(uint32(pieces))
}

// growSorted appends the nodes of entries whose paths agree in the first skip bytes, which name dir. The first of all is number base.
func growSorted(nodes []*node, base int, dir *node, entries []entry, skip int) []*node {
	type below struct {
		node    *node
		entries []entry
		skip    int
	}
	var deeper []below
	var made []*node
	for len(entries) > 0 {
		name, _, _ := strings.Cut(entries[0].path[skip:], "/")
		end := skip + len(name)
		n := 1
		for n < len(entries) && entries[n].path[skip:min(end, len(entries[n].path))] == name &&
			(len(entries[n].path) == end || entries[n].path[end] == '/') {
			n++
		}
		child := entries[0].node
		rest := entries[:n]
		if len(entries[0].path) == end {
			rest = rest[1:]
			for len(rest) > 0 && len(rest[0].path) == end { // a second entry of that path
				rest = rest[1:]
			}
		} else {
			child = &node{kind: kindDir, perm: dir.perm, uid: dir.uid, gid: dir.gid, modTime: dir.modTime, ino: inoOf(entries[0].path[:end], "dir")}
		}
		child.name = name
		if child.kind == kindDir {
			if child.dir == nil {
				child.dir = &directory{}
			}
			if len(rest) > 0 {
				deeper = append(deeper, below{child, rest, end + 1})
			}
		}
		made = append(made, child)
		entries = entries[n:]
	}
	dir.dir.first, dir.dir.count = base+len(nodes), len(made)
	slices.SortFunc(made, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	for i, n := range made {
		switch {
		case n.kind == kindDir:
			n.dir.number = dir.dir.first + i
		case n.kind == kindView && n.view != nil:
			n.view.number = dir.dir.first + i
		}
	}
	nodes = append(nodes, made...)
	for _, d := range deeper {
		nodes = growSorted(nodes, base, d.node, d.entries, d.skip)
	}
	return nodes
}

// inoOf makes an inode number that is the same at every mount of the same version, and never a reserved one.
func inoOf(path, version string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(path)) // a hash cannot fail
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(version))
	return max(h.Sum64(), 2)
}

// sourceEntries are the files of a listing as they are at the origin. hide keeps a name in the root free.
func sourceEntries(l *cache.Listing, hide string, adopt func(*node)) []entry {
	entries := make([]entry, 0, len(l.Objects)+len(l.Dirs)+len(l.Links))
	add := func(path string, n node) {
		if path == hide || strings.HasPrefix(path, hide+"/") {
			return
		}
		adopt(&n)
		entries = append(entries, entry{path, &n})
	}
	for _, d := range l.Dirs[1:] {
		add(d.Name, node{kind: kindDir, ino: inoOf(d.Name, "dir"), modTime: d.ModTime, perm: d.Perm, uid: d.UID, gid: d.GID})
	}
	for _, o := range l.Objects {
		add(o.Name, node{kind: kindObject, object: o, ino: inoOf(o.Name, o.Version), modTime: o.ModTime, perm: o.Perm, uid: o.UID, gid: o.GID})
	}
	for _, d := range l.Denied {
		add(d.Name, node{kind: kindDenied, ino: inoOf(d.Name, "denied"), modTime: l.Dirs[0].ModTime, uid: l.Dirs[0].UID, gid: l.Dirs[0].GID})
	}
	for _, k := range l.Links {
		add(k.Name, node{kind: kindLink, target: k.Target, ino: inoOf(k.Name, "link"), modTime: k.ModTime, perm: 0o777})
	}
	return entries
}
