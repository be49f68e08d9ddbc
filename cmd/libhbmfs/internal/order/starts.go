package order

import (
	"fmt"
	"sort"
)

// Epochs are the samples of a dataset in the order of all epochs, from 0 on. Sample k is one of epoch k / Count.
type Epochs struct {
	Count, Apart    int64    // samples of an epoch, and tokens from one of them to the next
	Given           int64    // samples that come before those that were drawn
	First           int64    // the epoch whose keys come first
	Keys            []uint64 // of each epoch's [Permutation]; nil: samples come as they lie
	Borders, Before []int64  // where documents begin, and how many samples come before each; nil: samples know no documents

	orders []Permutation
}

// mostSamples bounds the samples of an epoch.
const mostSamples = 1 << 62

// Starts gives samples of a mixture their first token, and the number of their dataset. drawn has the datasets of consecutive samples. places, which
// ascend, say which of them are asked for. Without drawn they are places in the order of the first dataset. python/hbmfs/data/_samples.py has the same.
func Starts(of []Epochs, rounds int, drawn []byte, places, starts []int64, sources []int32) error {
	for i := range of {
		if err := of[i].prepare(rounds); err != nil {
			return err
		}
	}
	if err := number(of, drawn, places, starts, sources); err != nil {
		return err
	}
	eachPart(len(places), func(from, to int) {
		for i := from; i < to; i++ {
			starts[i] = of[sources[i]].start(starts[i])
		}
	})
	return nil
}

// number gives each sample that is asked for its dataset, and its place in the order of that.
func number(of []Epochs, drawn []byte, places, starts []int64, sources []int32) error {
	if drawn == nil {
		before := int64(0)
		for i, place := range places {
			if place < before {
				return fmt.Errorf("place %d is behind place %d", place, before)
			}
			starts[i], sources[i], before = place, 0, place
		}
		if len(places) == 0 {
			return nil
		}
		return of[0].holds(places[0], before)
	}
	given, i := make([]int64, len(of)), 0
	for k := range of {
		given[k] = of[k].Given
	}
	for place, source := range drawn {
		if int(source) >= len(of) {
			return fmt.Errorf("a sample is of dataset %d, of %d", source, len(of))
		}
		if i < len(places) && places[i] == int64(place) {
			starts[i], sources[i] = given[source], int32(source)
			i++
		}
		given[source]++
	}
	if i < len(places) {
		return fmt.Errorf("place %d is not behind the one before it, or not among the %d samples that were drawn", places[i], len(drawn))
	}
	for k := range of {
		if given[k] > of[k].Given {
			if err := of[k].holds(of[k].Given, given[k]-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// holds refuses samples whose epochs have no keys.
func (e *Epochs) holds(samples ...int64) error {
	for _, k := range samples {
		if epoch := k / e.Count; e.Keys != nil && (epoch < e.First || epoch-e.First >= int64(len(e.orders))) {
			return fmt.Errorf("sample %d is of epoch %d, and there are keys of %d from %d on", k, epoch, len(e.orders), e.First)
		}
	}
	return nil
}

// prepare refuses numbers that cannot be.
func (e *Epochs) prepare(rounds int) error {
	if e.Count < 1 || e.Count > mostSamples || e.Given < 0 || e.First < 0 || len(e.Borders) != len(e.Before) || e.Borders != nil && len(e.Borders) == 0 {
		return fmt.Errorf("epochs of %d samples from epoch %d on, of which %d were given, of %d borders, cannot be", e.Count, e.First, e.Given, len(e.Borders))
	}
	for keys := e.Keys; rounds > 0 && len(keys) >= rounds; keys = keys[rounds:] {
		e.orders = append(e.orders, *permutationOf(uint64(e.Count), keys[:rounds]))
	}
	return nil
}

// start is the first token of a sample.
func (e *Epochs) start(k int64) int64 {
	epoch := k / e.Count
	k -= epoch * e.Count
	if e.Keys != nil {
		k = int64(e.orders[epoch-e.First].at(uint64(k)))
	}
	if e.Borders == nil {
		return k * e.Apart
	}
	document := max(sort.Search(len(e.Before), func(d int) bool { return e.Before[d] > k })-1, 0)
	return e.Borders[document] + (k-e.Before[document])*e.Apart
}
