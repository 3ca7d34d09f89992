package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"tailscale.com/ipn"
	"tailscale.com/tailcfg"
)

// probeResult is the JSON of tsn_probe.
type probeResult struct {
	// Known says whether the control server still has this node, with a key that is not expired.
	Known bool `json:"known"`
	// Why is set when it is not known.
	Why string `json:"why"`
}

// probe asks the control server about this node's key. A node that is deleted while its session is open is not told, neither
// by Headscale nor by the client, and would wait forever for a change. The question is the one that every client asks when
// it restarts: a registration without a key, which changes nothing for a known node; for an unknown one, the answer is a
// page to log in at.
func (n *node) probe(ctx context.Context, limit time.Duration) (probeResult, error) {
	lb := n.backend.Load()
	if lb == nil {
		return probeResult{}, errors.New("the node has not joined the tailnet")
	}
	nodeKey := lb.NodeKey()
	if nodeKey.IsZero() {
		return probeResult{Why: "the node has no key"}, nil
	}
	body, err := json.Marshal(tailcfg.RegisterRequest{
		Version:   tailcfg.CurrentCapabilityVersion,
		NodeKey:   nodeKey,
		Ephemeral: true,
		Hostinfo:  &tailcfg.Hostinfo{Hostname: n.config.Hostname},
	})
	if err != nil {
		return probeResult{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://control/machine/register", bytes.NewReader(body))
	if err != nil {
		return probeResult{}, err
	}
	res, err := lb.DoNoiseRequest(req)
	if err != nil {
		return probeResult{}, n.clean(fmt.Errorf("asking the control server: %w", err))
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return probeResult{}, fmt.Errorf("reading the control server's answer: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return probeResult{}, fmt.Errorf("the control server answered %d: %.200s", res.StatusCode, text)
	}
	var answer tailcfg.RegisterResponse
	if err := json.Unmarshal(text, &answer); err != nil {
		return probeResult{}, fmt.Errorf("the control server's answer is not JSON: %w", err)
	}
	switch {
	case answer.Error != "":
		return probeResult{}, fmt.Errorf("the control server answered: %s", n.logs.redact(answer.Error))
	case answer.NodeKeyExpired:
		return probeResult{Why: "the node's key has expired"}, nil
	case answer.AuthURL != "":
		return probeResult{Why: "the control server does not know this node; it was deleted"}, nil
	}
	return probeResult{Known: true}, nil
}

// forgetKeyIfDeleted makes the logout of a deleted node harmless. The client sends its auth key along with a logout, and
// Headscale takes the logout of an unknown node with a key for a registration: it would make a node that nobody is.
func (n *node) forgetKeyIfDeleted(limit time.Duration) {
	lb := n.backend.Load()
	if lb == nil {
		return
	}
	if answer, err := n.probe(context.Background(), limit); err != nil || answer.Known {
		return
	}
	if err := lb.Start(ipn.Options{}); err != nil {
		n.logs.logf("restarting the client without its key: %v", err)
	}
}
