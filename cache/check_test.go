package cache

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// good is an object that nothing is wrong with.
func good(name string) *layout.Object {
	return &layout.Object{Name: name, Size: 10, Version: "1", ModTime: time.Unix(1, 0)}
}

// TestListingsThatCannotBe lists one wrong object beside a good one: it is left out, with the reason at its place.
func TestListingsThatCannotBe(t *testing.T) {
	with := func(change func(*layout.Object)) *layout.Object {
		o := good("bad")
		change(o)
		return o
	}
	for says, bad := range map[string]*layout.Object{
		"less than nothing":       with(func(o *layout.Object) { o.Size = -1 }),
		"-9223372036854775808":    with(func(o *layout.Object) { o.Size = math.MinInt64 }),
		"more than a mount shows": with(func(o *layout.Object) { o.Size = math.MaxInt64 }),
		"no version":              with(func(o *layout.Object) { o.Version = "" }),
		"version":                 with(func(o *layout.Object) { o.Version = strings.Repeat("v", maxVersion+1) }),
		"cannot be asked for":     with(func(o *layout.Object) { o.Version = "a\r\nHost: elsewhere" }),
		"no path of a file":       with(func(o *layout.Object) { o.Name = "" }),
		"no path":                 with(func(o *layout.Object) { o.Name = "/bad" }),
		"no path of":              with(func(o *layout.Object) { o.Name = "bad/" }),
		"no path of a":            with(func(o *layout.Object) { o.Name = "a//bad" }),
		"is no path of":           with(func(o *layout.Object) { o.Name = "a/../bad" }),
		"the name":                with(func(o *layout.Object) { o.Name = "./bad" }),
		"is no path":              with(func(o *layout.Object) { o.Name = "bad\x00" }),
		"name is no path":         with(func(o *layout.Object) { o.Name = "a/" + strings.Repeat("n", 256) }),
		"bytes long":              with(func(o *layout.Object) { o.Name = strings.Repeat("n/", maxPath) + "n" }),
		"directory of others":     with(func(o *layout.Object) { o.Name = "dir" }),
		"listed twice":            with(func(o *layout.Object) { o.Name, o.Version = "dir/good", "2" }),
	} {
		l := RemoteListing([]*layout.Object{good("dir/good"), bad})
		if len(l.Objects) != 1 || l.Objects[0].Size != 10 || l.Objects[0].Name != "dir/good" {
			t.Errorf("%s: %d objects are shown", says, len(l.Objects))
		}
		if len(l.Problems) != 1 || !strings.Contains(l.Problems[0].Detail, says) || !strings.Contains(l.Problems[0].Detail, "left out") {
			t.Errorf("%s: the problems are %+.200v", says, l.Problems)
			continue
		}
		if place := l.Problems[0].Object; len(place) > 300 || !strings.HasPrefix(bad.Name, strings.TrimSuffix(place, "...")) {
			t.Errorf("%s: the problem is said of %q", says, place)
		}
	}
}

// TestListingsAreBounded lists objects that one by one could be, and are too much together.
func TestListingsAreBounded(t *testing.T) {
	var objects []*layout.Object
	for i := range 40 {
		o := good(strings.Repeat("n", i+1))
		o.Size = maxObject
		objects = append(objects, o)
	}
	l := RemoteListing(objects)
	if want := maxTotal / maxObject; len(l.Objects) != want || len(l.Problems) != 40-want || l.Bytes() != maxTotal {
		t.Errorf("%d objects of %d bytes are shown, %d are problems", len(l.Objects), l.Bytes(), len(l.Problems))
	}
}

// TestListingsOfStrangeTimes shows what a time that no calendar has is taken for.
func TestListingsOfStrangeTimes(t *testing.T) {
	o := good("file")
	o.ModTime = time.Unix(1<<40, 0)
	l := RemoteListing([]*layout.Object{o})
	if before := len(l.Problems); before == 1 {
		if l.Check(); len(l.Problems) != before {
			t.Errorf("a second look finds %+v", l.Problems[before:])
		}
	}
	if len(l.Objects) != 1 || !l.Objects[0].ModTime.Equal(time.Unix(0, 0)) || len(l.Problems) != 1 || !strings.Contains(l.Problems[0].Detail, "1970") {
		t.Errorf("%v, %+v", l.Objects[0].ModTime, l.Problems)
	}
}
