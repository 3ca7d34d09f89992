// The reference of `cargo xtask bench webhook`: an admission webhook in Go that decodes the review as any typed webhook
// does, allows everything and changes nothing. Arguments: address, certificate file, key file.
package main

import (
	"encoding/json"
	"log"
	"net/http"
	"os"
)

type request struct {
	UID    string         `json:"uid"`
	Object map[string]any `json:"object"`
}

type response struct {
	UID     string `json:"uid"`
	Allowed bool   `json:"allowed"`
}

type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *request  `json:"request,omitempty"`
	Response   *response `json:"response,omitempty"`
}

func main() {
	answer := func(w http.ResponseWriter, r *http.Request) {
		var asked review
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Request == nil {
			http.Error(w, "not an AdmissionReview", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review{
			APIVersion: asked.APIVersion,
			Kind:       asked.Kind,
			Response:   &response{UID: asked.Request.UID, Allowed: true},
		})
	}
	http.HandleFunc("/validate", answer)
	http.HandleFunc("/mutate", answer)
	log.Fatal(http.ListenAndServeTLS(os.Args[1], os.Args[2], os.Args[3], nil))
}
