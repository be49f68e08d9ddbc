package fanout

import (
	"context"
	"math/rand/v2"
)

const (
	piece      = 8 << 20 // bytes of a request of hbmfs
	window     = 16      // requests of a node under way: 128 MiB
	mostPieces = 250_000 // simulated, of all nodes in step
	fewNodes   = 64      // simulated, of nodes that begin elsewhere, with their part of the caches
	perShare   = share / piece
)

// station is a node's link, a cache or the origin: it does one piece at a time.
type station struct {
	rate float64
	free float64 // when it has done what has arrived
}

func (s *station) do(arrived float64) (done float64) {
	s.free = max(s.free, arrived) + piece/s.rate
	return s.free
}

// event is a piece on its way: from the origin to a cache, from a cache to a node, or at the node.
type event struct {
	at    float64
	kind  int
	node  int32
	piece int32
}

const (
	asked = iota // a node asks
	came         // a piece came from the origin to its cache
	sent         // a cache, or the origin, has sent a piece to a node
	done         // the node has it
)

// events is a heap, the soonest first. container/heap would allocate each.
type events []event

func (e *events) push(x event) {
	*e = append(*e, x)
	h := *e
	for i := len(h) - 1; i > 0 && h[i].at < h[(i-1)/2].at; i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
}

func (e *events) pop() event {
	h := *e
	first, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		least := i
		for _, child := range []int{2*i + 1, 2*i + 2} {
			if child < last && h[child].at < h[least].at {
				least = child
			}
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	*e = h
	return first
}

type simulation struct {
	pieces  int
	queue   events
	nodes   []station
	caches  []station
	origin  station
	of      []int32           // the cache of a share
	here    []bool            // pieces that their caches have
	waiting map[int32][]int32 // nodes, by piece that is on its way to its cache
	first   []int             // piece of each node
	next    []int             // how many each has asked for

	inStep bool
	got    []int // nodes that have a piece
	floor  int   // the first piece that not all have
}

// simulate gives the time to the last node.
func (c *Cluster) simulate(ctx context.Context, caches int, elsewhere bool) (float64, error) {
	nodes, origin, rate := c.Nodes, c.Origin, c.Cache
	pieces := max(mostPieces/nodes, 2*window)
	if elsewhere {
		part := max(1, float64(nodes)/fewNodes)
		fewer := caches
		if caches > 0 {
			fewer = max(1, int(float64(caches)/part+0.5))
			rate *= float64(caches) / part / float64(fewer)
		}
		if caches == 0 {
			origin /= part // it sends to each node
		}
		nodes, caches = int(float64(nodes)/part), fewer
		pieces = 2*perShare*caches + 4*fewNodes
	}
	s := &simulation{pieces: min(pieces, int((c.Size+piece-1)/piece)), origin: station{rate: origin}, waiting: map[int32][]int32{}, inStep: !elsewhere}
	random := rand.New(rand.NewPCG(1, uint64(caches)))    // the same result each time
	for i := range (s.pieces + perShare - 1) / perShare { // as many each: of all shares of a dataset that is nearly so
		s.of = append(s.of, int32(i%max(1, caches)))
	}
	random.Shuffle(len(s.of), func(i, j int) { s.of[i], s.of[j] = s.of[j], s.of[i] })
	s.here, s.got = make([]bool, s.pieces), make([]int, s.pieces)
	for range caches {
		s.caches = append(s.caches, station{rate: rate})
	}
	for i := range nodes {
		s.nodes = append(s.nodes, station{rate: c.Node})
		begin := 0
		if elsewhere {
			begin = random.IntN(len(s.of)) * perShare
		}
		s.first, s.next = append(s.first, begin), append(s.next, 0)
		for range window {
			s.ask(i, 0)
		}
	}
	last := 0.0
	for n := 0; len(s.queue) > 0; n++ {
		if n&(1<<16-1) == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		e := s.queue.pop()
		s.step(e)
		last = max(last, e.at)
	}
	return last * float64(c.Size) / float64(int64(s.pieces)*piece), nil
}

// ask has a node ask for its next piece, if there is one.
func (s *simulation) ask(node int, at float64) {
	if s.next[node] >= s.pieces {
		return
	}
	p := (s.first[node] + s.next[node]) % s.pieces
	s.next[node]++
	s.queue.push(event{at, asked, int32(node), int32(p)})
}

func (s *simulation) step(e event) {
	switch e.kind {
	case asked:
		switch waiting, coming := s.waiting[e.piece]; {
		case len(s.caches) == 0:
			s.queue.push(event{s.origin.do(e.at), sent, e.node, e.piece})
		case s.here[e.piece]:
			s.send(e)
		case coming:
			s.waiting[e.piece] = append(waiting, e.node)
		default:
			s.waiting[e.piece] = []int32{e.node}
			s.queue.push(event{s.origin.do(e.at), came, 0, e.piece})
		}
	case came:
		s.here[e.piece] = true
		for _, node := range s.waiting[e.piece] {
			s.send(event{e.at, asked, node, e.piece})
		}
		delete(s.waiting, e.piece)
	case sent:
		s.queue.push(event{s.nodes[e.node].do(e.at), done, e.node, e.piece})
	case done:
		if !s.inStep {
			s.ask(int(e.node), e.at)
			return
		}
		for s.got[e.piece]++; s.floor < s.pieces && s.got[s.floor] == len(s.nodes); s.floor++ {
			for node := range s.nodes { // they have waited for the last one
				s.ask(node, e.at)
			}
		}
	}
}

// send has a piece's cache send it.
func (s *simulation) send(e event) {
	cache := &s.caches[s.of[e.piece/perShare]]
	s.queue.push(event{cache.do(e.at), sent, e.node, e.piece})
}
