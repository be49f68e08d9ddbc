package order

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// mixed is a mixture of random datasets, some in the order of keys, some with documents, and what was drawn of it.
func mixed(random *rand.Rand, rounds int) (of []Epochs, drawn []byte) {
	of = make([]Epochs, 1+random.IntN(4))
	for range random.IntN(3000) {
		drawn = append(drawn, byte(random.IntN(len(of))))
	}
	for k := range of {
		e := &of[k]
		*e = Epochs{Count: 1 + random.Int64N(200), Apart: 1 + random.Int64N(9), Given: random.Int64N(500)}
		if random.IntN(2) == 0 {
			e.First = e.Given / e.Count
			for range int((e.Given+3000)/e.Count-e.First+1) * rounds {
				e.Keys = append(e.Keys, random.Uint64())
			}
		}
		if random.IntN(2) == 0 {
			e.Borders, e.Before = []int64{0}, []int64{0}
			for e.Before[len(e.Before)-1] < e.Count {
				more := min(random.Int64N(5), e.Count-e.Before[len(e.Before)-1])
				e.Before = append(e.Before, e.Before[len(e.Before)-1]+more)
				e.Borders = append(e.Borders, e.Borders[len(e.Borders)-1]+more*e.Apart+random.Int64N(e.Apart))
			}
		}
	}
	return of, drawn
}

// startOf gives a sample's first token as the definition has it: epoch after epoch, document after document.
func startOf(e *Epochs, rounds int, k int64) int64 {
	epoch, place := k/e.Count, uint64(k%e.Count)
	if e.Keys != nil {
		all := make([]uint64, e.Count)
		permutationOf(uint64(e.Count), e.Keys[int(epoch-e.First)*rounds:][:rounds]).fill(all, 0)
		place = all[place]
	}
	if e.Borders == nil {
		return int64(place) * e.Apart
	}
	d := 0
	for int64(place) >= e.Before[d+1] {
		d++
	}
	return e.Borders[d] + (int64(place)-e.Before[d])*e.Apart
}

func TestStarts(t *testing.T) {
	const rounds = 6
	random := rand.New(rand.NewPCG(38, 1))
	for range 30 {
		of, drawn := mixed(random, rounds)
		var places, want []int64
		var sources []int32
		given := make([]int64, len(of))
		for place, source := range drawn {
			if random.IntN(3) > 0 {
				places, sources = append(places, int64(place)), append(sources, int32(source))
				want = append(want, startOf(&of[source], rounds, of[source].Given+given[source]))
			}
			given[source]++
		}
		starts, which := make([]int64, len(places)), make([]int32, len(places))
		if err := Starts(slices.Clone(of), rounds, drawn, places, starts, which); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(starts, want) || !slices.Equal(which, sources) {
			t.Fatalf("%v of %v, want %v of %v", starts, which, want, sources)
		}
		own := []int64{of[0].Given, of[0].Given + 1, of[0].Given + 700} // of one dataset, without a mixture
		for i, k := range own {
			want[i] = startOf(&of[0], rounds, k)
		}
		if err := Starts(slices.Clone(of[:1]), rounds, nil, own, starts, which); err != nil || !slices.Equal(starts[:3], want[:3]) {
			t.Fatalf("%v, want %v: %v", starts[:3], want[:3], err)
		}
	}
}

func TestStartsThatCannotBe(t *testing.T) {
	good := Epochs{Count: 5, Apart: 2, Keys: []uint64{1, 2}} // of one epoch, by two rounds
	for name, c := range map[string]struct {
		e      Epochs
		drawn  []byte
		places []int64
	}{
		"no samples":              {Epochs{}, []byte{0}, []int64{0}},
		"too many samples":        {Epochs{Count: mostSamples + 1}, []byte{0}, []int64{0}},
		"another dataset":         {good, []byte{0, 1}, []int64{0}},
		"a place behind":          {good, []byte{0, 0}, []int64{2}},
		"a place below 0":         {good, nil, []int64{-1}},
		"places that fall":        {good, nil, []int64{3, 2}},
		"a place twice":           {good, []byte{0, 0}, []int64{1, 1}},
		"an epoch without keys":   {good, nil, []int64{4, 5}},
		"a mixture without keys":  {good, []byte{0, 0, 0, 0, 0, 0}, []int64{0}},
		"an epoch before keys":    {Epochs{Count: 5, First: 1, Keys: good.Keys}, nil, []int64{0}},
		"given below 0":           {Epochs{Count: 5, Given: -1}, nil, []int64{0}},
		"borders without samples": {Epochs{Count: 5, Borders: []int64{0, 9}}, nil, []int64{0}},
		"no borders":              {Epochs{Count: 5, Borders: []int64{}, Before: []int64{}}, nil, []int64{0}},
	} {
		if err := Starts([]Epochs{c.e}, 2, c.drawn, c.places, make([]int64, len(c.places)), make([]int32, len(c.places))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := Starts([]Epochs{good}, 2, []byte{0, 0, 0, 0, 0}, []int64{0, 4}, make([]int64, 2), make([]int32, 2)); err != nil {
		t.Error(err)
	}
}
