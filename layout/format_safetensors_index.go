package layout

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"path"
	"slices"
	"strings"

	"github.com/hbmfs/hbmfs/layout/safetensors"
)

// safetensorsIndex is model.safetensors.index.json: which tensors are in which file.
//
//	{"metadata": {...}, "weight_map": {tensor: file, ...}}
//
// Source: huggingface/huggingface_hub, src/huggingface_hub/serialization/_torch.py (save_torch_state_dict).
type safetensorsIndex struct {
	object *Object
	seed   maphash.Seed
	files  map[string]*tensorNames // by the file's name in the dataset; nil where the index cannot be read
}

// tensorNames stands for a set of names in little room: how many, and the sum of their hashes.
type tensorNames struct {
	count int
	sum   uint64
}

func (n *tensorNames) add(seed maphash.Seed, name string) {
	n.count++
	n.sum += maphash.String(seed, name)
}

// safetensorsIndexName returns the name of the index that lists the file: model.safetensors.index.json for
// model-00001-of-00002.safetensors, and for model.safetensors.
func safetensorsIndexName(base string) string {
	const suffix = ".safetensors"
	stem := strings.TrimSuffix(base, suffix)
	if i := strings.LastIndex(stem, "-of-"); i >= 0 {
		if k := strings.LastIndexByte(stem[:i], '-'); k > 0 && isDigits(stem[k+1:i]) && isDigits(stem[i+len("-of-"):]) {
			stem = stem[:k]
		}
	}
	return stem + suffix + ".index.json"
}

func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// readSafetensorsIndex reads the index o of directory d. A mistake in it becomes a problem.
func readSafetensorsIndex(ctx context.Context, d *directory, o *Object) *safetensorsIndex {
	x := &safetensorsIndex{object: o, seed: maphash.MakeSeed()}
	files := map[string]*tensorNames{}
	err := eachWeight(ctx, d.volume.headers, o, func(p *objectParser, tensor, file string) error {
		names := files[file]
		if names == nil {
			if _, err := d.lookup(file); err != nil {
				return p.fail("tensor %q is said to be in %q: %v", tensor, file, err)
			}
			names = &tensorNames{}
			files[file] = names
		}
		names.add(x.seed, tensor)
		return nil
	})
	if err != nil {
		d.volume.report(o, err)
		return x
	}
	x.files = map[string]*tensorNames{}
	for file, names := range files {
		x.files[path.Join(d.path, file)] = names
	}
	return x
}

// eachWeight calls f for every entry of the index's weight_map.
func eachWeight(ctx context.Context, budget headerBudget, o *Object, f func(p *objectParser, tensor, file string) error) error {
	if o.Size > safetensors.MaxHeader {
		return corruptf(o, 0, "the index has %d bytes: at most %d are read", o.Size, safetensors.MaxHeader)
	}
	giveBack, err := budget.take(ctx, o.Size)
	if err != nil {
		return err
	}
	defer giveBack()
	document, err := readFull(ctx, o, 0, o.Size)
	if err != nil {
		return err
	}
	p := newObjectParser(o, 0, bytes.NewReader(document))
	found := false
	err = p.object(func(key string) error {
		if key != "weight_map" {
			return p.skip()
		}
		found = true
		return p.object(func(tensor string) error {
			var file string
			if err := p.value(&file); err != nil {
				return err
			}
			return f(p, tensor, file)
		})
	})
	if err == nil && !found {
		return p.fail("the index has no weight_map")
	}
	if err != nil {
		return err
	}
	return p.end()
}

// compare reports the tensors that the index wants in o and that are not there, and the other way round.
func (x *safetensorsIndex) compare(ctx context.Context, d *directory, o *Object, tensors []safetensors.Tensor) error {
	want := x.files[o.Name]
	if want == nil {
		return nil
	}
	var have tensorNames
	for i := range tensors {
		have.add(x.seed, tensors[i].Name)
	}
	if have == *want {
		return nil
	}
	present := map[string]struct{}{}
	for i := range tensors {
		present[tensors[i].Name] = struct{}{}
	}
	var lacking string
	missing := 0
	err := eachWeight(ctx, d.volume.headers, x.object, func(_ *objectParser, tensor, file string) error {
		if path.Join(d.path, file) != o.Name {
			return nil
		}
		if _, ok := present[tensor]; ok {
			delete(present, tensor)
		} else if missing++; missing == 1 {
			lacking = tensor
		}
		return nil
	})
	if err != nil {
		return err
	}
	if missing > 0 {
		d.problem(x.object, 0, "%d tensors that %s should hold are not in it, %q first", missing, o.Name, lacking)
	}
	for i := range tensors {
		if _, left := present[tensors[i].Name]; left {
			d.problem(o, tensors[i].At, "%d tensors are not in the index, %q first", len(present), tensors[i].Name)
			break
		}
	}
	return nil
}

// missing returns a bad shard for each file that the index names and that is not one of those that are there.
func (x *safetensorsIndex) missing(d *directory, have map[string]bool) []*Shard {
	var names []string
	for name := range x.files {
		if !have[name] {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, ComparePaths)
	var shards []*Shard
	for _, name := range names {
		why := "is missing"
		if d.find(name) >= 0 {
			why = "is not a safetensors file of this directory"
		}
		detail := fmt.Sprintf("the index names %s, which %s", name, why)
		d.problem(x.object, 0, "%s", detail)
		h := newShard(x.object)
		h.Name, h.Bad = name, detail
		shards = append(shards, h)
	}
	return shards
}
